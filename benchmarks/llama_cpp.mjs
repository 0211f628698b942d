// llama.cpp behind the npm package node-llama-cpp, for benchmarks/llama_cpp.py.
//
//     node llama_cpp.mjs FOLDER serve MODEL THREADS CLOCK     a line of JSON in, a line of JSON out
//     node llama_cpp.mjs FOLDER start MODEL THREADS           writes one token's text
//
// FOLDER is where npm has put the package.

import {createInterface} from "node:readline";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const [folder, command, modelPath, threads, clock] = process.argv.slice(2);
const entry = join(folder, "node_modules", "node-llama-cpp", "dist", "index.js");
const {getLlama} = await import(pathToFileURL(entry));
const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: Number(threads)
});
const model = await llama.loadModel({modelPath, useMmap: true});
const cpu = process.cpuUsage;
const now = () => (clock === "cpu" ? (cpu().user + cpu().system) / 1e6 : performance.now() / 1000);
const next = {generateNext: {token: true, options: {temperature: 0}}};

// The greedy tokens of each prompt, whatever they are: an end is no end here.
// seconds[i]: until all requests had i + 1 of them.
async function generate({prompts, count, flash}) {
    const context = await model.createContext({
        sequences: prompts.length,
        contextSize: Math.max(...prompts.map((prompt) => prompt.length)) + count + 8,
        batchSize: 2048,
        threads: Number(threads),
        flashAttention: flash
    });
    const sequences = prompts.map(() => context.getSequence());
    const seconds = new Array(count).fill(0);
    const start = now();
    const tokens = await Promise.all(prompts.map(async (prompt, index) => {
        const made = [];
        let input = [...prompt.slice(0, -1), [prompt.at(-1), next]];
        for (let i = 0; i < count; i++) {
            const token = (await sequences[index].controlledEvaluate(input)).at(-1).next.token;
            seconds[i] = Math.max(seconds[i], now() - start);
            made.push(token);
            input = [[token, next]];
        }
        return made;
    }));
    await context.dispose();
    return {seconds, tokens};
}

if (command === "start") {
    const prompt = model.tokenize("Once upon a time");
    const {tokens} = await generate({prompts: [prompt], count: 1, flash: true});
    process.stdout.write(model.detokenize(tokens[0]));
} else process.stdout.write("ready\n");
for await (const line of createInterface({input: process.stdin}))
    process.stdout.write(JSON.stringify(await generate(JSON.parse(line))) + "\n");
process.exit(0);
