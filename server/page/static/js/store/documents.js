// Reads files that a user adds to a question: {name, text}. The server reads a PDF, the page everything else.

import { t } from "../language/language.js";

const MOST_TEXT = 2 << 20; // bytes
const MOST_PDF = 8 << 20;
const LONGEST_NAME = 200;
const CONTROL = /[\0-\x08\x0e-\x1a\x1c-\x1f]/; // bytes that no text has

/** The document in a file; throws an Error with a one-line message where it holds no text. */
export async function readDocument(file, client) {
  const name = (file.name || "document.txt").slice(0, LONGEST_NAME);
  const pdf = file.type === "application/pdf" || /\.pdf$/i.test(name);
  const most = pdf ? MOST_PDF : MOST_TEXT;
  if (file.size > most)
    throw new Error(t("{name} has more than {most} MB: split it.", { name, most: most >> 20 }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (pdf) return { name, ...(await readPdf(bytes, name, client)) };
  const text = decoded(bytes);
  if (text === null) throw new Error(t("{name} is no text: add text, code, CSV or PDF.", { name }));
  if (!text.trim()) throw new Error(t("{name} is empty.", { name }));
  return { name, text };
}

async function readPdf(bytes, name, client) {
  let found;
  try {
    found = await client.json("/page/pdf", { body: { data: await base64(bytes) } });
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  const { text, pages, read } = found;
  const note = "{name}: the first {read} of {pages} pages were read; the rest is too long.";
  return read < pages ? { text, note: t(note, { name, read, pages }) } : { text };
}

function base64(bytes) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(new Blob([bytes]));
  });
}

/** The text of a file's bytes, in UTF-8, UTF-16 with its mark, or else Windows-1252; null for no text. */
function decoded(bytes) {
  const [first, second] = bytes;
  if ((first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff))
    return new TextDecoder(first === 0xff ? "utf-16le" : "utf-16be").decode(bytes);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    text = new TextDecoder("windows-1252").decode(bytes);
  }
  return CONTROL.test(text) ? null : text;
}
