"""Images in prompts, from a caller's picture to rows among the embeddings.

hasher.py       what a picture is called: a hash of everything that changes its embeddings
processing.py   a prompt with pictures -> a longer prompt, and a feature for each picture
chat.py         the pictures of a conversation
media.py        pictures by address: data URLs, allowed web sites
mrope.py        positions in three dimensions
gather.py       the rows that a step needs, out of the encoder's output, into the embeddings
inputs.py       the two classes that describe an image to the scheduler
"""
