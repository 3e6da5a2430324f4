# needs: git
version() { git --version; }
try() {
	git config --global user.name "A User" && git config --global user.email user@example.test
	git init --quiet --initial-branch main repo && cd repo
	echo one >file && git add file && git commit --quiet -m one
	git switch --quiet -c side && echo two >>file && git commit --quiet -am two
	echo three >>file && git stash --quiet && equal "$(tail -1 file)" two && git stash pop --quiet && equal "$(tail -1 file)" three
	git commit --quiet -am three && git switch --quiet main && git merge --quiet side
	git worktree add --quiet ../tree side~1 && equal "$(tail -1 ../tree/file)" two
	(cd ../tree && git switch --quiet -c other && echo x >new && git add new && git commit --quiet -m new)
	git clone --quiet . ../clone && equal "$(git -C ../clone log --oneline | wc -l)" 3
	git fsck --strict >/dev/null 2>&1 && git gc --quiet && equal "$(git status --porcelain)" ""
}
