// Scrolls to the end of a growing text until the user scrolls up; at the end again, it resumes.

const NEAR = 48; // pixels from the end that still count as the end

export class Follow {
  /** jump: a button to the end, shown while the user is elsewhere. */
  constructor(scroller, jump) {
    Object.assign(this, { scroller, jump, following: true, last: 0 });
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    jump.addEventListener("click", () => this.toEnd({ smooth: true }));
    new ResizeObserver(() => this.grown()).observe(scroller);
  }

  get left() {
    return this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
  }

  scrolled() {
    const top = this.scroller.scrollTop;
    if (this.left < NEAR) this.following = true;
    else if (top < this.last) this.following = false;
    this.last = top;
    this.jump.hidden = this.following || this.left < NEAR;
  }

  /** Called when the text has grown. */
  grown() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.jump.hidden = this.left < NEAR;
  }

  toEnd({ smooth = false } = {}) {
    this.following = true;
    this.jump.hidden = true;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.scroller.scrollTo({
      top: this.scroller.scrollHeight,
      behavior: smooth && !calm ? "smooth" : "instant",
    });
  }
}
