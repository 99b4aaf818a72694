package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/atoll-dev/atoll/playground/keys"
)

// A filled fleet can be kept: filling 100,000 objects takes more than an hour, and a start
// with them a minute.

// The files of a kept fleet, in its directory.
const (
	serverDir     = "atoll"
	keysDir       = "pki"
	documentsFile = "documents.json"
	membersFile   = "members.gob"
	// keptPort is the first of the members' ports, which the kubeconfigs in the kept datastore
	// contain. They are below the range of ephemeral ports.
	keptPort = 20_000
)

// isKept reports whether a directory holds a complete fleet: the members are written last.
func isKept(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, membersFile))
	return err == nil
}

// store kills the server, as a crash would, and keeps its data and the members' objects.
func (m *fleetBench) store(ctx context.Context, _ *fleetRun) error {
	m.server.Kill()
	m.server = nil
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", m.ports[0], keepPath), nil)
	if err != nil {
		return err
	}
	answer, err := m.crowdClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("keep the simulated members: HTTP %s", answer.Status)
	}
	return copyRun(m.dir, m.keep)
}

// restore copies a kept fleet and starts its members, but no server.
func (m *fleetBench) restore(ctx context.Context, _ *fleetRun) (err error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	if err := copyRun(m.keep, m.dir); err != nil {
		return err
	}
	if m.keys, err = loadKeys(m.dir); err != nil {
		return err
	}
	if err := m.multiply(ctx); err != nil {
		return err
	}
	return m.startCrowd(ctx)
}

func loadKeys(dir string) (*keys.Keys, error) {
	return keys.LoadOrMake(filepath.Join(dir, keysDir), "crowd", net.IPv4(127, 0, 0, 1))
}

// copyRun copies a kept fleet to another directory and preserves file modes: the server
// rejects keys that other users may read.
func copyRun(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("copy a kept fleet: %w", err)
	}
	for _, name := range []string{serverDir, keysDir, documentsFile, membersFile} {
		if output, err := exec.Command("cp", "-a", filepath.Join(from, name), to).CombinedOutput(); err != nil {
			return fmt.Errorf("copy a kept fleet: %w: %s", err, output)
		}
	}
	return nil
}

// keptMember is the stored form of a member. Its fields are the format of the file.
type keptMember struct {
	Version int
	Shelves map[string]keptCollection
}

type keptCollection struct {
	Kind, GroupVersion string
	Objects            map[string]keptObject
}

type keptObject struct {
	Raw, Spec            []byte
	UID, Namespace, Name string
	Generation           int
}

// store writes the objects of all members to the file.
func (t *simulatedFleet) store() error {
	all := map[string]keptMember{}
	for _, m := range t.members {
		all[m.name] = m.keep()
	}
	return writeMembers(t.kept, all)
}

// load reads the members' objects from the file, if it exists.
func (t *simulatedFleet) load() error {
	if t.kept == "" {
		return nil
	}
	all, err := readMembers(t.kept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, m := range t.members {
		if kept, ok := all[m.name]; ok {
			m.load(kept)
		}
	}
	return err
}

func writeMembers(to string, all map[string]keptMember) error {
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep the simulated members: %w", err)
	}
	return errors.Join(gob.NewEncoder(file).Encode(all), file.Close())
}

func readMembers(from string) (all map[string]keptMember, err error) {
	file, err := os.Open(from)
	if err != nil {
		return nil, fmt.Errorf("read the simulated members: %w", err)
	}
	defer file.Close()
	if err := gob.NewDecoder(file).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the simulated members: %w", err)
	}
	return all, nil
}

func (m *simulatedMember) keep() keptMember {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := keptMember{Version: m.version, Shelves: map[string]keptCollection{}}
	for key, s := range m.collections {
		objects := map[string]keptObject{}
		for name, o := range s.objects {
			objects[name] = keptObject{Raw: o.raw, Spec: o.spec, UID: o.uid, Namespace: o.namespace, Name: o.name, Generation: o.generation}
		}
		out.Shelves[key] = keptCollection{Kind: s.kind, GroupVersion: s.groupVersion, Objects: objects}
	}
	return out
}

// load sets the objects of a member that serves no requests yet.
func (m *simulatedMember) load(kept keptMember) {
	m.version, m.collections = kept.Version, map[string]*collection{}
	for key, s := range kept.Shelves {
		objects := map[string]*storedObject{}
		for name, o := range s.Objects {
			objects[name] = &storedObject{raw: o.Raw, spec: o.Spec, uid: o.UID, namespace: o.Namespace, name: o.Name, generation: o.Generation}
		}
		m.collections[key] = &collection{kind: s.Kind, groupVersion: s.GroupVersion, objects: objects, watching: map[chan []byte]bool{}}
	}
}
