// Program mirror builds the test providers and lays them out as a filesystem mirror, for this machine's
// operating system and architecture:
//
//	DIR/packed/HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_TARGET.zip
//	DIR/unpacked/HOST/NAMESPACE/TYPE/VERSION/TARGET/terraform-provider-TYPE_vVERSION
//
// It prints the result as JSON, and writes it to mirror.json in DIR. Files that are already correct
// are not touched, so repeating the command takes no longer than go build.
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	source  = "providers.test/atoll/"
	version = "1.0.0"
)

// Provider describes one built provider.
type Provider struct {
	Source  string `json:"source"`
	Version string `json:"version"`
	Target  string `json:"target"` // os_arch
	// Packed is the zip, Unpacked the directory with the executable.
	Packed   string `json:"packed"`
	Unpacked string `json:"unpacked"`
	// Digests as in a lock file: zh is the zip's SHA-256, h1 covers its content.
	ZH string `json:"zh"`
	H1 string `json:"h1"`
}

func main() {
	dir := flag.String("dir", "", "where the mirror is made")
	names := flag.String("only", "demo,demo5,evil,wide", "which providers")
	flag.Parse()
	if err := run(*dir, strings.Split(*names, ","), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string, names []string, out io.Writer) error {
	if dir == "" {
		return errors.New("say where: -dir DIR")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("this has to run in the module of the test providers: %w", err)
	}
	var all []Provider
	for _, name := range names {
		p, err := buildOne(strings.TrimSpace(string(module)), dir, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, *p)
	}
	document, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	document = append(document, '\n')
	if err := replace(dir, filepath.Join(dir, "mirror.json"), document, 0o644); err != nil {
		return err
	}
	_, err = out.Write(document)
	return err
}

// buildOne builds one provider and packs it.
func buildOne(module, dir, name string) (*Provider, error) {
	target := runtime.GOOS + "_" + runtime.GOARCH
	file := "terraform-provider-" + name
	p := &Provider{
		Source: source + name, Version: version, Target: target,
		Packed:   filepath.Join(dir, "packed", source+name, fmt.Sprintf("%s_%s_%s.zip", file, version, target)),
		Unpacked: filepath.Join(dir, "unpacked", source+name, version, target),
	}
	executable := filepath.Join(p.Unpacked, file+"_v"+version)
	if err := build(module, dir, name, executable); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	packed, err := pack(filepath.Base(executable), content)
	if err != nil {
		return nil, err
	}
	if err := replace(dir, p.Packed, packed, 0o644); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(packed)
	p.ZH = "zh:" + hex.EncodeToString(sum[:])
	p.H1 = h1(map[string][]byte{filepath.Base(executable): content})
	return p, nil
}

// build puts the executable in its place atomically.
func build(module, dir, name, executable string) error {
	draft, err := os.MkdirTemp(dir, ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(draft)
	built := filepath.Join(draft, name)
	// Independent of this machine's paths and the repository's state, so that the same sources give
	// the same digest.
	command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "./"+name)
	command.Dir = module
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return err
	}
	content, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return replace(dir, executable, content, 0o755)
}

// pack creates a zip that is identical for identical content.
func pack(name string, content []byte) ([]byte, error) {
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	header := &zip.FileHeader{Name: name, Method: zip.Deflate}
	header.SetMode(0o755)
	file, err := archive.CreateHeader(header)
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// h1 returns the digest of files as in Go's module checksums: over a list of their digests and
// names, sorted by name.
func h1(files map[string][]byte) string {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	list := sha256.New()
	for _, name := range names {
		fmt.Fprintf(list, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	return "h1:" + base64.StdEncoding.EncodeToString(list.Sum(nil))
}

// replace writes a file atomically. It does not touch a correct file, because a process may be
// running it.
func replace(dir, path string, content []byte, mode os.FileMode) error {
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// In another directory, because hosts treat every file in a provider's directory as part of it.
	draft, err := os.CreateTemp(dir, ".draft-")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name()) // fails once it was renamed
	_, err = draft.Write(content)
	if err := errors.Join(err, draft.Chmod(mode), draft.Close()); err != nil {
		return err
	}
	return os.Rename(draft.Name(), path)
}
