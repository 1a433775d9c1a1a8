export { JsonReader } from "./jsonreader.js";
export { JsonStream } from "./jsonstream.js";
