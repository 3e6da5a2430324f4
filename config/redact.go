package config

import (
	"encoding/json"
	"regexp"

	"github.com/berm-dev/berm/driver"
)

// redacted stands for a secret.
const redacted = "(redacted)"

// secretName matches fields of backends whose value is a secret. It matches too
// much rather than too little.
var secretName = regexp.MustCompile(`(?i)key|token|secret|password|credential|mtls`)

// Redacted gives the file as Encode does, without secrets: the values of
// environment variables and credentials, storage keys, and what a backend's field by its name
// may hold. It is for people and logs.
func (f *File) Redacted() ([]byte, error) {
	d := f.document
	if d.Env != nil {
		env := make(map[string]string, len(d.Env))
		for name := range d.Env {
			env[name] = redacted
		}
		d.Env = env
	}
	if d.Layout != nil {
		layout := *d.Layout
		for _, volume := range []**driver.Volume{&layout.Outputs, &layout.Scratch, &layout.Uploads, &layout.ToolResults, &layout.Transcripts} {
			if *volume != nil {
				copied := **volume
				copied.Source = redactSource(copied.Source)
				*volume = &copied
			}
		}
		layout.Skills = append([]driver.Skill(nil), layout.Skills...)
		for i := range layout.Skills {
			layout.Skills[i].Source = redactSource(layout.Skills[i].Source)
		}
		d.Layout = &layout
	}
	d.redactEgress()
	backend := make(map[string]json.RawMessage, len(d.backend))
	for name, value := range d.backend {
		if secretName.MatchString(name) {
			value = json.RawMessage(`"` + redacted + `"`)
		}
		backend[name] = value
	}
	d.backend = backend
	return d.encode()
}

func redactSource(source driver.Source) driver.Source {
	if source.AzureFileShare != nil {
		share := *source.AzureFileShare
		share.StorageAccountKey = redacted
		source.AzureFileShare = &share
	}
	return source
}
