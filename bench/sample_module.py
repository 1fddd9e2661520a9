"""Stock of a small warehouse: goods by name, deliveries and orders, and what must be bought again.

The file that the task "code" of bench/speculation.py has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


class StockError(Exception):
    """An order that cannot be met, or a delivery that makes no sense."""


@dataclass(frozen=True, slots=True)
class Order:
    """Goods that a customer wants, in pieces."""

    customer: str
    name: str
    pieces: int


@dataclass(slots=True)
class Article:
    """One kind of goods."""

    name: str
    price: float  # of a piece
    least: int = 0  # pieces below which it is bought again
    pieces: int = 0
    sold: int = 0

    @property
    def value(self) -> float:
        """What the pieces in stock are worth."""
        return self.pieces * self.price

    @property
    def missing(self) -> int:
        """Pieces that must be bought again."""
        return max(0, self.least - self.pieces)


@dataclass(slots=True)
class Warehouse:
    """All articles, and the orders that wait for some of them."""

    articles: dict[str, Article] = field(default_factory=dict)
    waiting: deque[Order] = field(default_factory=deque)

    def add(self, article: Article) -> None:
        """Takes an article into the range; its name must be new."""
        if article.name in self.articles:
            raise StockError(f"{article.name} is in the range already")
        self.articles[article.name] = article

    def find(self, name: str) -> Article:
        """The article of this name."""
        article = self.articles.get(name)
        if article is None:
            raise StockError(f"{name} is not in the range")
        return article

    def deliver(self, name: str, pieces: int) -> list[Order]:
        """Adds delivered pieces, and gives the waiting orders that they meet."""
        if pieces < 1:
            raise StockError(f"a delivery of {pieces} pieces")
        self.find(name).pieces += pieces
        return list(self._meet(name))

    def order(self, order: Order) -> bool:
        """Whether the order is met at once; else it waits for a delivery."""
        article = self.find(order.name)
        if order.pieces < 1:
            raise StockError(f"{order.customer} ordered {order.pieces} pieces")
        if article.pieces < order.pieces:
            self.waiting.append(order)
            return False
        self._take(article, order.pieces)
        return True

    def cancel(self, customer: str) -> int:
        """Removes a customer's waiting orders, and gives their number."""
        kept = [order for order in self.waiting if order.customer != customer]
        removed = len(self.waiting) - len(kept)
        self.waiting = deque(kept)
        return removed

    def value(self) -> float:
        """What everything in stock is worth."""
        return sum(article.value for article in self.articles.values())

    def shopping_list(self) -> list[tuple[str, int]]:
        """What must be bought again, with what waiting orders need, the most pieces first."""
        needed = {article.name: article.missing for article in self.articles.values()}
        for order in self.waiting:
            needed[order.name] += order.pieces
        rows = [(name, pieces) for name, pieces in needed.items() if pieces]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def _meet(self, name: str) -> Iterator[Order]:
        """The waiting orders of this article that its pieces meet, in their turn."""
        article, kept = self.find(name), deque[Order]()
        for order in self.waiting:
            if order.name == name and order.pieces <= article.pieces:
                self._take(article, order.pieces)
                yield order
            else:
                kept.append(order)
        self.waiting = kept

    def _take(self, article: Article, pieces: int) -> None:
        article.pieces -= pieces
        article.sold += pieces


def best_sellers(articles: Iterable[Article], count: int) -> list[Article]:
    """The articles of which most pieces were sold."""
    return sorted(articles, key=lambda article: (-article.sold, article.name))[:count]
