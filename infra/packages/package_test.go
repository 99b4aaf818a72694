package packages

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"
)

// entry is one file of a test archive.
type entry struct {
	name, content string
	mode          fs.FileMode // 0 is 0644
	method        uint16      // 0 is Store
	change        func(*zip.FileHeader)
}

// pack creates an archive, valid or not.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: e.method}
		if e.mode == 0 {
			e.mode = 0o644
		}
		header.SetMode(e.mode)
		if e.change != nil {
			e.change(header)
			raw, err := w.CreateRaw(header)
			if err == nil {
				_, err = io.WriteString(raw, e.content)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		file, err := w.CreateHeader(header)
		if err == nil {
			_, err = io.WriteString(file, e.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

const programText = "#!/bin/sh\necho a provider\n"

// files are the entries of a valid package.
func files() []entry {
	return []entry{
		{name: "LICENSE", content: "do what you like"},
		{name: "docs/", mode: fs.ModeDir | 0o777},
		{name: "docs/index.md", content: strings.Repeat("about\n", 1000), method: zip.Deflate},
		{name: "terraform-provider-demo_v1.2.3", content: programText, mode: 0o777},
	}
}

var demo = Package{Source: Address{"tf.example.com", "acme", "demo"}, Version: "1.2.3", Platform: Platform{"linux", "amd64"}}

// zh and h1 compute digests independently of the package.
func zh(archive []byte) Digest {
	sum := sha256.Sum256(archive)
	return Digest("zh:" + hex.EncodeToString(sum[:]))
}

func h1(t testing.TB, entries []entry) Digest {
	t.Helper()
	var names []string
	content := map[string]string{}
	for _, e := range entries {
		if !strings.HasSuffix(e.name, "/") {
			names = append(names, e.name)
			content[e.name] = e.content
		}
	}
	sum, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content[name])), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return Digest(sum)
}

// lay writes files below a directory.
func lay(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// packedMirror is a mirror with one archive, of the package demo.
func packedMirror(t testing.TB, archive []byte) FilesystemMirror {
	t.Helper()
	dir := t.TempDir()
	lay(t, dir, map[string]string{demo.Source.String() + "/" + demo.archiveName(): string(archive)})
	return FilesystemMirror{dir}
}

func unpackedMirror(t testing.TB, entries []entry) FilesystemMirror {
	t.Helper()
	dir, files := t.TempDir(), map[string]string{}
	for _, e := range entries {
		if !strings.HasSuffix(e.name, "/") {
			files[demo.Source.String()+"/1.2.3/linux_amd64/"+e.name] = e.content
		}
	}
	lay(t, dir, files)
	return FilesystemMirror{dir}
}

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// storeDir returns a directory for a store, and makes its read-only content removable at cleanup.
func storeDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(at, 0o755)
			}
			return err
		})
	})
	return dir
}

// tree lists everything below a directory, with modes, without the store's own directories.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && name != "." {
			out.WriteString(info.Mode().String() + " " + name + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const emptyStore = "drwxr-xr-x packages\ndrwxr-xr-x records\ndrwx------ staging\n"

// failsWith checks the kind of an error, and for words in it.
func failsWith(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("the error is %v, not %v", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error lacks %q: %v", word, err)
		}
	}
}

func request(origin Origin, digests ...Digest) Request {
	return Request{Package: demo, Origin: origin, Digests: digests}
}

// nowhere is an origin that must not be used.
type nowhere struct{ t testing.TB }

func (n nowhere) Versions(context.Context, Address) ([]Version, error) { return nil, n.asked() }
func (n nowhere) Find(context.Context, Package) (Found, error)         { return Found{}, n.asked() }
func (n nowhere) String() string                                       { return "nowhere" }

func (n nowhere) asked() error {
	n.t.Error("an origin was asked")
	return ErrNotFound
}
