package config

import (
	"fmt"
	"strings"

	"github.com/berm-dev/berm/driver"
)

// readLayout reads `layout`, whose names are those of driver.Layout.
func readLayout(o *object) driver.Layout {
	var layout driver.Layout
	if o == nil {
		return layout
	}
	layout.Outputs = readVolume(o.object("outputs"))
	layout.Scratch = readVolume(o.object("scratch"))
	layout.Uploads = readVolume(o.object("uploads"))
	layout.ToolResults = readVolume(o.object("toolResults"))
	layout.Transcripts = readVolume(o.object("transcripts"))
	list(o, "skills", "an object", func(place string, fields map[string]any) {
		layout.Skills = append(layout.Skills, readSkill(&object{path: place, fields: fields, faults: o.faults}))
	})
	layout.Workdir, _ = o.text("workdir")
	list(o, "readOnly", "a string", func(_ string, dir string) {
		layout.ReadOnly = append(layout.ReadOnly, dir)
	})
	o.done()
	return layout
}

func readVolume(o *object) *driver.Volume {
	if o == nil {
		return nil
	}
	volume := &driver.Volume{Source: readSource(o)}
	volume.Path, _ = o.text("path")
	o.done()
	return volume
}

func readSkill(o *object) driver.Skill {
	var skill driver.Skill
	skill.ID, _ = o.text("id")
	skill.Source = readSource(o)
	skill.Path, _ = o.text("path")
	o.done()
	return skill
}

func readSource(o *object) driver.Source {
	var source driver.Source
	s := o.object("source")
	if s == nil {
		return source
	}
	if dir := s.object("hostDir"); dir != nil {
		source.HostDir = &driver.HostDir{}
		source.HostDir.HostPath, _ = dir.text("hostPath")
		dir.done()
	}
	if share := s.object("azureFileShare"); share != nil {
		source.AzureFileShare = &driver.AzureFileShare{}
		source.AzureFileShare.StorageAccountName, _ = share.text("storageAccountName")
		source.AzureFileShare.ShareName, _ = share.text("shareName")
		source.AzureFileShare.StorageAccountKey, _ = share.text("storageAccountKey")
		share.done()
	}
	if image := s.object("inImage"); image != nil {
		source.InImage = &driver.InImage{}
		image.done()
	}
	s.done()
	return source
}

// belowLayout names fields of the layout in full, for whoever wrote one of them
// at the top of the file.
func belowLayout() []string {
	return []string{"layout.outputs", "layout.scratch", "layout.uploads", "layout.toolResults",
		"layout.transcripts", "layout.skills", "layout.workdir", "layout.readOnly"}
}

// checkLayout adds what driver.Layout.Resolve has against the layout, at the
// place in the file that it is about. The mounts themselves are thrown away:
// opening the provider resolves them again, with berm's own state known.
func checkLayout(f *faults, layout driver.Layout, caps driver.Capabilities) {
	_, reasons, refusals := layout.Resolve(caps)
	places := layoutPlaces(layout)
	for _, reason := range append(reasons, refusals...) {
		f.add("%s", locate(reason, places))
	}
}

// layoutPlaces maps the layout's own names of mounts to places in the file.
func layoutPlaces(layout driver.Layout) map[string]string {
	places := map[string]string{"workdir": "layout.workdir"}
	for _, name := range []string{"outputs", "scratch", "uploads", "toolResults", "transcripts"} {
		places[name] = "layout." + name
	}
	for i, skill := range layout.Skills {
		place := index("layout.skills", i)
		for _, name := range []string{"skills/" + skill.ID, fmt.Sprintf("skill id %q", skill.ID)} {
			// Of two skills with one name the second is the one that is refused.
			places[name] = place
		}
	}
	for i, dir := range layout.ReadOnly {
		places["readOnly "+dir] = index("layout.readOnly", i)
	}
	return places
}

// locate puts the place in the file before a reason of the form "name: fault".
func locate(reason string, places map[string]string) string {
	name, fault, place := "", "", ""
	for candidate, at := range places {
		rest, found := strings.CutPrefix(reason, candidate+": ")
		if found && len(candidate) > len(name) {
			name, fault, place = candidate, rest, at
		}
	}
	if place == "" {
		return "layout: " + reason
	}
	if strings.HasPrefix(name, "skill id ") {
		return place + ".id: " + strings.TrimPrefix(reason, "skill id ")
	}
	// The workdir and read-only entries are plain strings, with nothing below.
	volume := name != "workdir" && !strings.HasPrefix(name, "readOnly ")
	for text, below := range map[string]string{"path ": ".path", "host path ": ".source.hostDir.hostPath", "source ": ".source"} {
		if volume && strings.HasPrefix(fault, text) {
			return place + below + ": " + strings.TrimPrefix(fault, "source ")
		}
	}
	return place + ": " + fault
}
