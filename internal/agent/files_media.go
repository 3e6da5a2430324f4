package agent

import (
	"path"
	"strings"
)

// mediaType gives a file's type by the end of its name. The table is here and not
// the system's, whose files inside are an image's or a payload's.
func mediaType(p string) string {
	switch ext := strings.ToLower(path.Ext(p)); ext {
	case ".txt", ".text", ".log", ".conf", ".ini", ".toml", ".go", ".rs", ".py", ".rb", ".c", ".h", ".cpp", ".java", ".sh", ".ts", ".sql":
		return "text/plain; charset=utf-8"
	case ".html", ".htm":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".csv":
		return "text/csv; charset=utf-8"
	case ".md", ".markdown":
		return "text/markdown; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".xml":
		return "text/xml; charset=utf-8"
	case ".yaml", ".yml":
		return "application/yaml"
	case ".json", ".map", ".ipynb":
		return "application/json"
	case ".pdf":
		return "application/pdf"
	case ".wasm":
		return "application/wasm"
	default:
		return packedType(ext)
	}
}

// packedType is mediaType for pictures, sound and archives.
func packedType(ext string) string {
	switch ext {
	case ".png", ".gif", ".webp", ".bmp", ".avif":
		return "image/" + ext[1:]
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".svg":
		return "image/svg+xml"
	case ".ico":
		return "image/x-icon"
	case ".tif", ".tiff":
		return "image/tiff"
	case ".mp3":
		return "audio/mpeg"
	case ".wav", ".ogg", ".flac":
		return "audio/" + ext[1:]
	case ".mp4", ".webm", ".mpeg":
		return "video/" + ext[1:]
	case ".woff", ".woff2", ".ttf", ".otf":
		return "font/" + ext[1:]
	case ".gz", ".tgz":
		return "application/gzip"
	case ".zip":
		return "application/zip"
	case ".tar":
		return "application/x-tar"
	default:
		return octetStream
	}
}
