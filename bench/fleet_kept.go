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

// A fleet that was filled can be kept: filling 100,000 objects takes more than an hour,
// and a start with them a minute.

// What is kept of a run, in its directory.
const (
	serverDir     = "atoll"
	keysDir       = "pki"
	documentsFile = "documents.json"
	membersFile   = "members.gob"
	// keptPort is the first of the members' ports: the kubeconfigs in the kept datastore
	// name them. They are below those that systems give to whoever asks for any.
	keptPort = 20_000
)

// isKept says whether a directory holds a whole run: the members are written last.
func isKept(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, membersFile))
	return err == nil
}

// store ends the server as a crash would, and keeps what it and the members have.
func (m *mass) store(ctx context.Context, _ *fleetRun) error {
	m.server.Kill()
	m.server = nil
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", m.ports[0], keepPath), nil)
	if err != nil {
		return err
	}
	answer, err := m.ask.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("keep the simulated members: %s", answer.Status)
	}
	return copyRun(m.dir, m.keep)
}

// restore begins with a copy of what was kept, and no server.
func (m *mass) restore(ctx context.Context, _ *fleetRun) (err error) {
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

// copyRun copies what is kept of a run from one directory to another, with all modes: the
// server refuses keys that others may read.
func copyRun(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("copy a kept fleet: %w", err)
	}
	for _, name := range []string{serverDir, keysDir, documentsFile, membersFile} {
		if said, err := exec.Command("cp", "-a", filepath.Join(from, name), to).CombinedOutput(); err != nil {
			return fmt.Errorf("copy a kept fleet: %w: %s", err, said)
		}
	}
	return nil
}

// keptMember is what a member has, in a file.
type keptMember struct {
	Version int
	Shelves map[string]keptShelf
}

type keptShelf struct {
	Kind, GroupVersion string
	Objects            map[string]keptObject
}

type keptObject struct {
	Raw, Spec            []byte
	UID, Namespace, Name string
	Generation           int
}

// store writes down what all members have.
func (t *throng) store() error {
	all := map[string]keptMember{}
	for _, m := range t.members {
		all[m.name] = m.keep()
	}
	return writeMembers(t.kept, all)
}

// load gives members what was written down, if it was.
func (t *throng) load() error {
	if t.kept == "" {
		return nil
	}
	all, err := readMembers(t.kept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, m := range t.members {
		if kept, ok := all[m.name]; ok {
			m.take(kept)
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

func (m *simulated) keep() keptMember {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := keptMember{Version: m.version, Shelves: map[string]keptShelf{}}
	for key, s := range m.shelves {
		objects := map[string]keptObject{}
		for name, o := range s.objects {
			objects[name] = keptObject{Raw: o.raw, Spec: o.spec, UID: o.uid, Namespace: o.namespace, Name: o.name, Generation: o.generation}
		}
		out.Shelves[key] = keptShelf{Kind: s.kind, GroupVersion: s.groupVersion, Objects: objects}
	}
	return out
}

// take gives a member that nobody talks to yet what another had.
func (m *simulated) take(kept keptMember) {
	m.version, m.shelves = kept.Version, map[string]*shelf{}
	for key, s := range kept.Shelves {
		objects := map[string]*boxed{}
		for name, o := range s.Objects {
			objects[name] = &boxed{raw: o.Raw, spec: o.Spec, uid: o.UID, namespace: o.Namespace, name: o.Name, generation: o.Generation}
		}
		m.shelves[key] = &shelf{kind: s.Kind, groupVersion: s.GroupVersion, objects: objects, watching: map[chan []byte]bool{}}
	}
}
