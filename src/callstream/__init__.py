"""Live, durable tool calls for agent applications."""
