# needs: tar gzip zip unzip
version() { echo "$(tar --version | head -1), $(zip -v | sed -n 2p)"; }
try() {
	mkdir -p tree/deep && echo text >tree/deep/file && ln -s deep/file tree/link && ln tree/deep/file tree/hard && : >'tree/a name'
	tar czf tree.tgz tree && mkdir out && tar xzf tree.tgz -C out && diff -r tree out/tree
	equal "$(readlink out/tree/link)" deep/file
	zip -qr tree.zip tree && mkdir zipped && (cd zipped && unzip -q ../tree.zip) && diff -r tree zipped/tree
}
