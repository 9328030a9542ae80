"""Steps of other packages, sound and wrong ones: what `meshproof` says of them, and what fixed tolerances say."""
