package alike

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

// The test providers make things in a directory: see infra/testproviders/README.md.

// made is an object of a world.
type made struct {
	Type       string                     `json:"type"`
	ID         string                     `json:"id"`
	Version    int                        `json:"version"`
	Attributes map[string]json.RawMessage `json:"attributes"`
}

// worlds are the directories of both providers.
func worlds(directory string) []string { return []string{directory, directory + "-5"} }

func objectsOf(directory string) ([]made, error) {
	var all []made
	for _, world := range worlds(directory) {
		paths, err := filepath.Glob(filepath.Join(world, "objects", "*", "*.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			var o made
			if err := json.Unmarshal(text, &o); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

func (o *made) text(name string) string {
	var text string
	if json.Unmarshal(o.Attributes[name], &text) != nil {
		return ""
	}
	return text
}

// drift does to a world what somebody else does. It tells whether there was something to do it to.
func drift(directory, id string, d Drift) error {
	typ, _, _ := strings.Cut(id, "-")
	for _, world := range worlds(directory) {
		path := filepath.Join(world, "objects", typ, id+".json")
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var o made
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

// entry is a line of a world's log.
type entry struct {
	Call    string   `json:"call"`
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	Changed []string `json:"changed"`
}

// look takes in all of a world. What no state has ever named gets its name here.
func (n *names) look(out *Outcome) error {
	objects, err := objectsOf(n.directory)
	if err != nil {
		return err
	}
	slices.SortFunc(objects, func(a, b made) int {
		return strings.Compare(fmt.Sprint(a.Type, a.text("name"), a.Version), fmt.Sprint(b.Type, b.text("name"), b.Version))
	})
	for _, o := range objects {
		n.learn(o.ID, "lost "+o.Type+" "+o.text("name"))
	}
	for range 3 { // contents have digests of others in them
		for _, o := range objects {
			n.learnDigest(o.text("sha256"), o.text("content"))
		}
	}
	out.World, out.Done = map[string]any{}, map[string]int{}
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
	for _, world := range worlds(n.directory) {
		if err := n.lookAt(world, out); err != nil {
			return err
		}
	}
	return nil
}

func (n *names) lookAt(world string, out *Outcome) error {
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
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the log of %s: %w", world, err)
		}
		switch e.Call {
		case "create", "update", "delete":
			out.Done[fmt.Sprintf("%s %s %s", e.Call, n.text(e.ID), strings.Join(e.Changed, ","))]++
		}
	}
	return lines.Err()
}

// states takes in what a side has stored, in an order that both have: addresses, the current one first.
func (n *names) states(all []stored) map[string]Instance {
	slices.SortFunc(all, func(a, b stored) int { return strings.Compare(a.order(), b.order()) })
	for _, s := range all {
		n.learn(s.text("id"), s.address.String())
	}
	for range 3 {
		for _, s := range all {
			n.learnDigest(s.text("sha256"), s.text("content"))
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

// stored is an instance as it is stored.
type stored struct {
	Instance
	address    Address
	deposed    bool
	attributes map[string]any
}

func (s *stored) order() string { return fmt.Sprint(s.address, s.deposed, s.attributes["name"]) }

func (s *stored) text(name string) string {
	text, _ := s.attributes[name].(string)
	return text
}

// idsOf are the current IDs, by address.
func idsOf(all []stored) map[string]string {
	out := map[string]string{}
	for _, s := range all {
		if !s.deposed {
			out[s.address.String()] = s.text("id")
		}
	}
	return out
}

// there are the addresses of what is stored.
func there(ids map[string]string) map[Address]bool {
	out := map[Address]bool{}
	for text := range maps.Keys(ids) {
		typ, name, _ := strings.Cut(text, ".")
		out[Address{Type: typ, Name: name}] = true
	}
	return out
}
