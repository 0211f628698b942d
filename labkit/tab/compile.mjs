// Adds bytecode to what the tab loads: node compile.mjs FOLDER, the folder with pyodide/, packages.zip and
// course.zip. The Python that runs in the tab makes it, for no other version's can be read there.
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2]);
const archives = {
  stdlib: join(folder, "pyodide", "python_stdlib.zip"),
  packages: join(folder, "packages.zip"),
  course: join(folder, "course.zip"),
};
const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide", "pyodide.mjs")).href);
const python = await loadPyodide({ indexURL: join(folder, "pyodide") + "/", stdout: () => {} });
for (const [name, path] of Object.entries(archives)) python.FS.writeFile(`/tmp/${name}.zip`, new Uint8Array(readFileSync(path)));
python.runPython(readFileSync(new URL("bytecode.py", import.meta.url), "utf8"));
for (const [name, path] of Object.entries(archives)) writeFileSync(path, python.FS.readFile(`/tmp/${name}.compiled.zip`));
