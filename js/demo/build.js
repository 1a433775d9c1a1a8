// Builds the page into the server's folder, where `callstream demo` and `callstream serve` find it.

import { cp, mkdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (/** @type {string} */ path) => fileURLToPath(new URL(path, import.meta.url));
const target = here("../../src/callstream/server/page/react/");

await rm(target, { recursive: true, force: true });
await mkdir(target, { recursive: true });
await build({
  entryPoints: [here("page.jsx")],
  outfile: `${target}page.js`,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  // As if both were installed: the package from its folder, and React for the package from this one.
  alias: { "callstream/react": here("../react.js"), callstream: here("../index.js") },
  nodePaths: [here("node_modules")],
});
for (const name of ["index.html", "page.css"]) await cp(here(name), `${target}${name}`);
console.log("==> src/callstream/server/page/react/index.html");
