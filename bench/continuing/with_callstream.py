"""google-adk behind ``callstream serve``."""

from google.adk.agents import LlmAgent
from google.adk.integrations.openai import OpenAILlm

from bench.continuing.tools import INSTRUCTION, PROVIDER, look_up, write_document

model = OpenAILlm(model="gpt-4o", api_key="none", base_url=PROVIDER)
root_agent = LlmAgent(name="writer", model=model, instruction=INSTRUCTION, tools=[look_up, write_document])
