package differential

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The test providers keep their objects in a directory, the world: see infra/testproviders/README.md.

// worldObject is an object in a world.
type worldObject struct {
	Type       string                     `json:"type"`
	ID         string                     `json:"id"`
	Version    int                        `json:"version"`
	Attributes map[string]json.RawMessage `json:"attributes"`
}

// worldDirectories returns the worlds of both providers.
func worldDirectories(directory string) []string { return []string{directory, directory + "-5"} }

func objectsOf(directory string) ([]worldObject, error) {
	var all []worldObject
	for _, world := range worldDirectories(directory) {
		paths, err := filepath.Glob(filepath.Join(world, "objects", "*", "*.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			var o worldObject
			if err := json.Unmarshal(text, &o); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

func (o *worldObject) text(name string) string {
	var text string
	if json.Unmarshal(o.Attributes[name], &text) != nil {
		return ""
	}
	return text
}

// applyDrift changes or removes an object in a world, as another client would. It does nothing if the object does not exist.
func applyDrift(directory, id string, d Drift) error {
	typ, _, _ := strings.Cut(id, "-")
	for _, world := range worldDirectories(directory) {
		path := filepath.Join(world, "objects", typ, id+".json")
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var o worldObject
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		if d.Remove {
			if typ == "demo_file" {
				_ = os.Remove(filepath.Join(world, "files", o.text("name")))
			}
			return os.Remove(path)
		}
		if o.Attributes[d.Attribute], err = json.Marshal(d.Text); err != nil {
			return err
		}
		if text, err = json.Marshal(o); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	}
	return nil
}

// logEntry is a line of a world's log of calls.
type logEntry struct {
	Call    string   `json:"call"`
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	Changed []string `json:"changed"`
}

// readWorld reads all objects and calls of a world into out. It assigns placeholders to IDs that no state has contained.
func (n *placeholders) readWorld(out *Outcome) error {
	objects, err := objectsOf(n.directory)
	if err != nil {
		return err
	}
	slices.SortFunc(objects, func(a, b worldObject) int {
		return strings.Compare(fmt.Sprint(a.Type, a.text("name"), a.Version), fmt.Sprint(b.Type, b.text("name"), b.Version))
	})
	for _, o := range objects {
		n.assign(o.ID, "orphaned "+o.Type+" "+o.text("name"))
	}
	for range 3 { // contents may contain digests of other objects
		for _, o := range objects {
			n.assignDigest(o.text("sha256"), o.text("content"))
		}
	}
	out.World, out.Calls = map[string]any{}, map[string]int{}
	for _, o := range objects {
		text, err := json.Marshal(o.Attributes)
		if err != nil {
			return err
		}
		attributes, err := decode(text)
		if err != nil {
			return err
		}
		out.World[n.text(o.ID)] = map[string]any{"version": o.Version, "attributes": n.attributes(o.Type, attributes)}
	}
	for _, world := range worldDirectories(n.directory) {
		if err := n.readDirectory(world, out); err != nil {
			return err
		}
	}
	return nil
}

func (n *placeholders) readDirectory(world string, out *Outcome) error {
	files, err := filepath.Glob(filepath.Join(world, "files", "*"))
	if err != nil {
		return err
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		out.World["file "+filepath.Base(path)] = map[string]any{"mode": info.Mode().String(), "content": n.text(string(content))}
	}
	log, err := os.Open(filepath.Join(world, "log.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e logEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the log of %s: %w", world, err)
		}
		switch e.Call {
		case "create", "update", "delete":
			out.Calls[fmt.Sprintf("%s %s %s", e.Call, n.text(e.ID), strings.Join(e.Changed, ","))]++
		}
	}
	return lines.Err()
}

// states returns the stored instances by name, in normal form. It assigns placeholders in an order that is the same on both
// sides: by address, with the current instance before deposed ones.
func (n *placeholders) states(all []storedInstance) map[string]Instance {
	slices.SortFunc(all, func(a, b storedInstance) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	for _, s := range all {
		n.assign(s.text("id"), s.address.String())
	}
	for range 3 {
		for _, s := range all {
			n.assignDigest(s.text("sha256"), s.text("content"))
		}
	}
	out := map[string]Instance{}
	for _, s := range all {
		name := s.address.String()
		if s.deposed {
			name += " (deposed)"
			for out[name].Attributes != nil {
				name += "+"
			}
		}
		instance := s.Instance
		instance.Attributes = n.attributes(s.address.Type, s.attributes)
		instance.Private = n.private(s.Private)
		instance.Identity = n.value(s.Identity)
		out[name] = instance
	}
	return out
}

// storedInstance is an instance as one side stores it.
type storedInstance struct {
	Instance
	address    Address
	deposed    bool
	attributes map[string]any
}

func (s *storedInstance) sortKey() string {
	return fmt.Sprint(s.address, s.deposed, s.attributes["name"])
}

func (s *storedInstance) text(name string) string {
	text, _ := s.attributes[name].(string)
	return text
}

// currentIDs returns the IDs of the current instances, by address.
func currentIDs(all []storedInstance) map[string]string {
	out := map[string]string{}
	for _, s := range all {
		if !s.deposed {
			out[s.address.String()] = s.text("id")
		}
	}
	return out
}

// addressesOf returns the addresses that have an ID.
func addressesOf(ids map[string]string) map[Address]bool {
	out := map[Address]bool{}
	for text := range maps.Keys(ids) {
		typ, name, _ := strings.Cut(text, ".")
		out[Address{Type: typ, Name: name}] = true
	}
	return out
}
