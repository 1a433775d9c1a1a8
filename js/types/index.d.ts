export { JsonReader } from "./jsonreader.js";
export { JsonStream } from "./jsonstream.js";
export { Thread } from "./thread.js";
export { ToolCalls } from "./toolcalls.js";
