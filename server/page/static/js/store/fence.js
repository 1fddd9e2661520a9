// Markdown's fence around code or a document.

/** The text in a fence that is longer than any run of backticks in it. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** A document as a model reads it: its name, and its text in a fence. */
export function documentText({ name, text }) {
  const ending = /\.([\w+-]{1,12})$/.exec(name)?.[1].toLowerCase() ?? "";
  return `${name}:\n\n${fenced(text, ending === "pdf" ? "" : ending)}`;
}
