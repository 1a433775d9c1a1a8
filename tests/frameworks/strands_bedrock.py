from __future__ import annotations

from typing import Any

WIRE = "bedrock_converse"


async def ask(base_url: str, cs: Any) -> Any:
    import boto3
    from strands.models.bedrock import BedrockModel

    from tests.frameworks.strands_openai import call_of

    session = boto3.Session(aws_access_key_id="none", aws_secret_access_key="none", region_name="us-east-1")
    model = BedrockModel(boto_session=cs.tap_boto(session), endpoint_url=base_url, model_id="claude")
    return await call_of(model)
