// Plots a value over time on a canvas: a curve, the area below it, and a few grid lines.

import { t } from "../language/language.js";
import { SPAN_S } from "./series.js";

const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const TICKS = 3;

/** Draws points {time, [name]} up to `now`. most: the smallest maximum of the scale. label(value): a tick's text. */
export function plot(canvas, points, name, { now, most, label }) {
  const { width, height, pen } = fresh(canvas);
  const style = getComputedStyle(canvas);
  const highest = roundUp(Math.max(most, ...points.map((p) => p[name])));
  const x = (time) => LEFT + (width - LEFT) * (1 - (now - time) / SPAN_S);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / highest);
  pen.font = `11px ${style.fontFamily}`;
  pen.fillStyle = style.color;
  pen.strokeStyle = style.borderTopColor;
  scale(pen, { highest, y, width, height, label });
  if (points.length > 1)
    line(
      pen,
      points.map((p) => [x(p.time), y(p[name])]),
      y(0),
      style.outlineColor,
    );
}

function fresh(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { width, height, pen };
}

function scale(pen, { highest, y, width, height, label }) {
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  for (let i = 0; i <= TICKS; i += 1) {
    const value = (highest * i) / TICKS;
    const at = Math.round(y(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(LEFT, at);
    pen.lineTo(width, at);
    pen.stroke();
    pen.textAlign = "right";
    pen.fillText(label(value), LEFT - 8, at);
  }
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  pen.fillText(t("2 min ago"), LEFT, height - 4);
  pen.textAlign = "right";
  pen.fillText(t("now"), width, height - 4);
}

function line(pen, places, ground, colour) {
  pen.beginPath();
  places.forEach(([x, y]) => pen.lineTo(x, y));
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.stroke();
  pen.lineTo(places.at(-1)[0], ground);
  pen.lineTo(places[0][0], ground);
  pen.globalAlpha = 0.12;
  pen.fillStyle = colour;
  pen.fill();
  pen.globalAlpha = 1;
}

/** The next larger number that divides into three round steps. */
function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [1.2, 1.5, 3, 6, 9, 12].map((m) => m * step).find((m) => m >= value * 0.999);
}
