package packages

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/sumdb/dirhash"
	"k8s.io/utils/clock"
)

// Store is a directory of unpacked packages, each named after its digest:
//
//	packages/SUM/…                              the files; SUM is the h1: digest in hexadecimal
//	records/HOST/NAMESPACE/TYPE/VERSION/OS_ARCH.json   the package that was fetched under that name
//	staging/…                                   packages that are being fetched
//
// Any number of processes of one user can share it. A package appears in packages/ complete, by one
// rename, and is read-only. Its digest is verified again before each use.
type Store struct {
	dir   string
	root  *os.Root
	clock clock.PassiveClock
}

const (
	packagesDir = "packages"
	recordsDir  = "records"
	stagingDir  = "staging"
)

// OpenStore opens the store in a directory, and creates the directory if necessary. A nil clock
// means the real one. Write access to the directory allows running programs with the server's
// rights.
func OpenStore(dir string, now clock.PassiveClock) (*Store, error) {
	if now == nil {
		now = clock.RealClock{}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, ownMode); err != nil {
		return nil, fmt.Errorf("provider store: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("provider store: %w", err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return nil, fmt.Errorf("provider store: %s is world-writable, so that any user can replace programs; run chmod o-w", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("provider store: %w", err)
	}
	s := &Store{dir: dir, root: root, clock: now}
	for name, mode := range map[string]fs.FileMode{packagesDir: ownMode, recordsDir: ownMode, stagingDir: 0o700} {
		err := root.Mkdir(name, mode)
		if err == nil {
			err = root.Chmod(name, mode) // regardless of the umask: providers may run as another user
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			_ = root.Close() // nothing was written
			return nil, fmt.Errorf("provider store: %w", err)
		}
	}
	return s, nil
}

// Close closes the directory. It does not change its content.
func (s *Store) Close() error { return s.root.Close() }

func packagePath(content Digest) string {
	return path.Join(packagesDir, hex.EncodeToString(content.sum()))
}

// Directory returns the directory of a package, whether or not it exists.
func (s *Store) Directory(content Digest) string {
	return filepath.Join(s.dir, filepath.FromSlash(packagePath(content)))
}

// Verify reads a package and verifies its digest (h1:). It returns ErrNotFound if the package is
// not in the store, and ErrRefused if it was modified. Installing it again repairs it.
func (s *Store) Verify(ctx context.Context, content Digest) error {
	_, err := s.verify(ctx, content, &meter{})
	return err
}

func (s *Store) verify(ctx context.Context, content Digest, progress *meter) (contents, error) {
	if !content.isContent() || content.sum() == nil {
		return contents{}, fmt.Errorf("%w: packages in the store are identified by h1: digests, not by %q", ErrInvalid, string(content))
	}
	at := packagePath(content)
	if err := s.open(at); err != nil {
		return contents{}, err
	}
	root, err := s.root.OpenRoot(at)
	if err != nil {
		return contents{}, err
	}
	defer func() { _ = root.Close() }() // read only
	found, err := read(ctx, root, progress)
	switch {
	case err != nil:
		return contents{}, fmt.Errorf("package %s in the store: %w", content, err)
	case found.digest != content:
		return contents{}, fmt.Errorf("%w: package %s in the store was modified; its digest is now %s", ErrRefused, content, found.digest)
	}
	now := s.clock.Now()
	_ = s.root.Chtimes(at, now, now) // for Collect; fails on a read-only file system, which has no Collect
	return found, nil
}

// open checks a package's own directory. Another process may have just moved it there and not
// sealed it yet.
func (s *Store) open(at string) error {
	info, err := s.root.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the store has no package %s", ErrNotFound, path.Base(at))
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%w: package %s in the store is not a directory", ErrRefused, path.Base(at))
	}
	if info.Mode() == fs.ModeDir|directoryMode {
		return nil
	}
	if err := s.root.Chmod(at, directoryMode); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: package %s was just removed from the store", ErrNotFound, path.Base(at))
	} else if err != nil {
		return err
	}
	return nil
}

// contents describes a package's directory.
type contents struct {
	digest  Digest
	files   []string
	program string // the only executable file
}

// read computes the h1: digest. It accepts only regular, read-only files, because the digest covers
// neither modes nor links to the same content elsewhere.
func read(ctx context.Context, root *os.Root, progress *meter) (contents, error) {
	var c contents
	total := int64(0)
	err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode == fs.ModeDir|directoryMode:
			return nil
		case mode == fileMode:
		case mode == programMode && c.program == "":
			c.program = name
		default:
			return fmt.Errorf("%w: %q has the unexpected mode %s", ErrRefused, name, mode)
		}
		c.files = append(c.files, name)
		total += info.Size()
		return nil
	})
	if err != nil {
		return contents{}, err
	}
	if c.program == "" {
		return contents{}, fmt.Errorf("%w: no file is executable", ErrRefused)
	}
	progress.start("verify", 0, total)
	sum, err := dirhash.Hash1(c.files, func(name string) (io.ReadCloser, error) {
		file, err := root.Open(name)
		if err != nil {
			return nil, err
		}
		return &meteredFile{contextReader{ctx, file}, file, progress}, nil
	})
	c.digest = Digest(sum)
	return c, err
}

// meteredFile is a file that reports progress while it is read.
type meteredFile struct {
	contextReader
	io.Closer
	progress *meter
}

func (m *meteredFile) Read(p []byte) (int, error) {
	n, err := m.contextReader.Read(p)
	m.progress.add(int64(n))
	return n, err
}

// record describes the package that was fetched under a name.
type record struct {
	Content   Digest    `json:"content"`
	Archive   Digest    `json:"archive,omitempty"`
	Signature Signature `json:"signature"`
	From      string    `json:"from"`
}

// matches returns the first of the digests that the package has.
func (r record) matches(digests []Digest) (Digest, bool) {
	for _, d := range digests {
		if d == r.Content || r.Archive != "" && d == r.Archive {
			return d, true
		}
	}
	return "", false
}

func recordPath(p Package) string {
	return path.Join(recordsDir, p.Source.String(), string(p.Version), p.Platform.String()+".json")
}

// readRecord reads a record. An invalid record counts as absent, so that the package is fetched
// again.
func (s *Store) readRecord(name string) (record, bool) {
	text, err := s.root.ReadFile(name)
	var r record
	if err != nil || json.Unmarshal(text, &r) != nil {
		return record{}, false
	}
	ok := r.Content.isContent() && r.Content.sum() != nil && (r.Archive == "" || r.Archive.isArchive() && r.Archive.sum() != nil)
	return r, ok
}

// put moves an unpacked and verified package to its place. If an intact copy is there already, it
// is kept.
func (s *Store) put(ctx context.Context, st *stage, c contents, r record, p Package) error {
	at := packagePath(c.digest)
	for try := range maxTries {
		err := s.root.Rename(path.Join(st.name, contentName), at)
		if err == nil {
			// Another process may have replaced it already, because it found an error.
			if err := ignore(s.open(at), ErrNotFound); err != nil {
				return err
			}
			now := s.clock.Now()
			_ = s.root.Chtimes(at, now, now) // for Collect
			break
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
		there, bad := s.verify(ctx, c.digest, &meter{})
		if bad == nil && there.program == c.program {
			break
		}
		// A permission error means that another process has sealed the directory meanwhile.
		if err := s.moveAside(at, st, try); try == maxTries-1 || ignore(err, fs.ErrPermission) != nil {
			return errors.Join(err, bad)
		}
	}
	return s.write(st, recordPath(p), r)
}

const maxTries = 10

// moveAside moves anything in a package's place into the stage, with which it is removed.
func (s *Store) moveAside(at string, st *stage, try int) error {
	info, err := s.root.Lstat(at)
	if err == nil && info.IsDir() { // moving a directory writes to it
		err = s.root.Chmod(at, ownMode)
	}
	if err == nil {
		err = s.root.Rename(at, path.Join(st.name, fmt.Sprintf("displaced-%d", try)))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process was faster
	}
	return err
}

func (s *Store) write(st *stage, name string, r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	draft := path.Join(st.name, "record")
	if err := s.root.WriteFile(draft, append(text, '\n'), 0o644); err != nil {
		return err
	}
	if err := s.root.MkdirAll(path.Dir(name), ownMode); err != nil {
		return err
	}
	return s.root.Rename(draft, name)
}

// Collect removes packages that have none of the given digests, of either kind, and have not been
// installed or verified for the given time. It also removes the stages of dead processes. It
// returns the removed packages. A program that still runs from a removed package continues to run.
func (s *Store) Collect(keep []Digest, unused time.Duration) ([]Digest, error) {
	kept := map[Digest]bool{}
	for _, d := range keep {
		kept[d] = true
	}
	records := map[string]record{}
	err := fs.WalkDir(s.root.FS(), recordsDir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		r, ok := s.readRecord(name)
		if _, named := r.matches(keep); ok && named {
			kept[r.Content] = true
		}
		records[name] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("provider store: %w", err)
	}
	removed, err := s.collectPackages(kept, unused)
	for name, r := range records {
		if _, gone := s.root.Lstat(packagePath(r.Content)); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, ignore(s.root.Remove(name), fs.ErrNotExist))
		}
	}
	return removed, errors.Join(err, s.sweep())
}

func (s *Store) collectPackages(kept map[Digest]bool, unused time.Duration) (removed []Digest, err error) {
	entries, err := fs.ReadDir(s.root.FS(), packagesDir)
	if err != nil {
		return nil, fmt.Errorf("provider store: %w", err)
	}
	for _, entry := range entries {
		content := contentOf(entry.Name())
		info, gone := entry.Info()
		if gone != nil || kept[content] || s.clock.Since(info.ModTime()) < unused {
			continue
		}
		if err := s.remove(path.Join(packagesDir, entry.Name())); err != nil {
			return removed, fmt.Errorf("provider store: %w", err)
		}
		if content != "" {
			removed = append(removed, content)
		}
	}
	slices.Sort(removed)
	return removed, nil
}

// remove moves a package away before it deletes the files, so that no process sees a part of it.
func (s *Store) remove(at string) error {
	st, err := s.stage()
	if err != nil {
		return err
	}
	return errors.Join(s.moveAside(at, st, 0), st.close())
}

// contentOf returns the digest of a package from the name of its directory, or "" for any other
// name.
func contentOf(name string) Digest {
	sum, err := hex.DecodeString(name)
	if err != nil || len(sum) != 32 || strings.ToLower(name) != name {
		return ""
	}
	return newDigest(contentScheme, sum)
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
