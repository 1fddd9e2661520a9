// Elements made in one place. Text becomes text nodes only: nothing here or elsewhere parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. props: "on..." are listeners, true and false are attributes there and absent, the rest are attributes. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The element with this id in the page's own HTML. */
export function the(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** Shows text in a node that had other text; a node that has it already is left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
