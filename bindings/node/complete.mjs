// Continues a text: node complete.mjs MODEL TEXT, where `satchel build` made the model file.
import { Model } from "./satchel.mjs";

const [path, text] = process.argv.slice(2);
const model = new Model(path);
for await (const piece of model.generate(text, { temperature: 0, max_tokens: 64 })) process.stdout.write(piece);
