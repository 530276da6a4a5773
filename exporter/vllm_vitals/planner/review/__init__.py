"""The weekly capacity review: findings, money, trend and charts, as HTML, Markdown and JSON."""
