"""The pictures of a comparison: each is drawn from the result files alone, as SVG and PNG, with a caption."""
