# needs: ffmpeg ffprobe
version() { ffmpeg -version | head -1; }
try() {
	ffmpeg -v error -f lavfi -i testsrc=duration=2:size=128x96:rate=10 -f lavfi -i sine=duration=2 -shortest film.mkv
	equal "$(ffprobe -v error -select_streams v -show_entries stream=width,height -of csv=p=0 film.mkv)" 128,96
	ffmpeg -v error -i film.mkv -vf scale=64:-2 -frames:v 1 one.png && equal "$(head -c 4 one.png | tail -c 3)" PNG
}
