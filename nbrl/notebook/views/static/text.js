// Text that is not trusted becomes text nodes; what cannot be seen is named.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** The text with control pictures and [U+200B] names; line breaks stay where `lines` is true. */
export function visible(text, lines = false) {
  return String(text).replace(UNSEEN, (c) => {
    const code = c.codePointAt(0);
    if (lines && c === "\n") return "\u240a\n";
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

/** An element with attributes and children; strings become text nodes, never markup. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((c) => c != null));
  return element;
}

/** A number in at most six characters or so; nothing for NaN. */
export function number(value) {
  if (value == null || Number.isNaN(value)) return "";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}
