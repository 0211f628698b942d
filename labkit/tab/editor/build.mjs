// Makes ../assets/editor.js: CodeMirror and editor.src.js in one file, below the licences of its parts.
import { build } from "esbuild";
import { readFileSync } from "node:fs";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const parts = Object.keys(dependencies).filter((name) => name !== "esbuild");
const licence = (name) => readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
const owner = (name) => licence(name).match(/^Copyright.*$/m)[0];
const terms = licence("@codemirror/view").replace(/^Copyright.*\n+/m, "");

await build({
  entryPoints: ["editor.src.js"],
  outfile: "../assets/editor.js",
  bundle: true, minify: true, format: "esm", target: "es2020", legalComments: "none",
  banner: {
    js: `/*! Made by labkit/tab/editor/build.mjs from editor.src.js and these packages:\n\n${
      parts.map((name) => `${name} ${dependencies[name]}: ${owner(name)}`).join("\n")}\n\n${terms}\n*/`,
  },
});
