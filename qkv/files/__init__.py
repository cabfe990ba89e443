"""Files of texts and files of answers: what `qkv encode` reads and writes. Knows no HTTP and builds no bundle."""
