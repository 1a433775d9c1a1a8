// The official AG-UI client, cut off anywhere: see tests/server/clients/cutting.mjs.

import { HttpAgent } from "@ag-ui/client";
import { agUi, answer } from "../../server/clients/cutting.mjs";

await answer((question) => agUi(HttpAgent, question));
