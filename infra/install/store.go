package install

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

// Store is a directory of unpacked packages, each under its own digest:
//
//	packages/SUM/…                              the files; SUM is the h1: in hexadecimal
//	records/HOST/NAMESPACE/TYPE/VERSION/OS_ARCH.json   what was fetched under that name
//	staging/…                                   what is being fetched
//
// Any number of processes of one user can share it. What is below packages/ came there whole,
// by one rename, and is read-only; that it still is what its name says is looked at
// before each use, and not believed.
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

// OpenStore opens the store in a directory, which is made if it is not there. A nil clock
// is the real one. Who may write to the directory may run programs as the server does.
func OpenStore(dir string, now clock.PassiveClock) (*Store, error) {
	if now == nil {
		now = clock.RealClock{}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, ownMode); err != nil {
		return nil, fmt.Errorf("store of providers: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("store of providers: %w", err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return nil, fmt.Errorf("store of providers: everybody may write to %s, and so exchange programs; take that right away (chmod o-w)", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("store of providers: %w", err)
	}
	s := &Store{dir: dir, root: root, clock: now}
	for name, mode := range map[string]fs.FileMode{packagesDir: ownMode, recordsDir: ownMode, stagingDir: 0o700} {
		err := root.Mkdir(name, mode)
		if err == nil {
			err = root.Chmod(name, mode) // whatever the umask is: a provider may run as another user
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			_ = root.Close() // nothing is in it
			return nil, fmt.Errorf("store of providers: %w", err)
		}
	}
	return s, nil
}

// Close lets go of the directory. Nothing in it changes.
func (s *Store) Close() error { return s.root.Close() }

func placeOf(content Digest) string {
	return path.Join(packagesDir, hex.EncodeToString(content.sum()))
}

// Directory is where a package is, or would be.
func (s *Store) Directory(content Digest) string {
	return filepath.Join(s.dir, filepath.FromSlash(placeOf(content)))
}

// Verify reads a package, and tells whether it still is what its digest (h1:) says. ErrNotFound if
// it is not there, ErrRefused if it was changed: installing it again puts it right.
func (s *Store) Verify(ctx context.Context, content Digest) error {
	_, err := s.verify(ctx, content, &meter{})
	return err
}

func (s *Store) verify(ctx context.Context, content Digest, progress *meter) (contents, error) {
	if !content.ofContent() || content.sum() == nil {
		return contents{}, fmt.Errorf("%w: packages in the store are known by h1:, not by %q", ErrInvalid, string(content))
	}
	at := placeOf(content)
	if err := s.open(at); err != nil {
		return contents{}, err
	}
	root, err := s.root.OpenRoot(at)
	if err != nil {
		return contents{}, err
	}
	defer func() { _ = root.Close() }() // it was only read
	found, err := read(ctx, root, progress)
	switch {
	case err != nil:
		return contents{}, fmt.Errorf("package %s in the store: %w", content, err)
	case found.digest != content:
		return contents{}, fmt.Errorf("%w: package %s in the store was changed, it is %s now", ErrRefused, content, found.digest)
	}
	now := s.clock.Now()
	_ = s.root.Chtimes(at, now, now) // for Collect, which a store on a read-only file system does not have
	return found, nil
}

// open looks at a package's own directory. One that another process has just put there may not be
// sealed yet.
func (s *Store) open(at string) error {
	info, err := s.root.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the store has no package %s", ErrNotFound, path.Base(at))
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%w: package %s in the store is no directory", ErrRefused, path.Base(at))
	}
	if info.Mode() == fs.ModeDir|directoryMode {
		return nil
	}
	if err := s.root.Chmod(at, directoryMode); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: package %s has just been taken out of the store", ErrNotFound, path.Base(at))
	} else if err != nil {
		return err
	}
	return nil
}

// contents is what a package's directory has.
type contents struct {
	digest  Digest
	files   []string
	program string // the one file that can be executed
}

// read computes h1:, of plain and read-only files alone: the digest itself sees neither modes nor that
// a file is a link to the same content somewhere else.
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
			return fmt.Errorf("%w: %q has the mode %s, which the store does not give to it", ErrRefused, name, mode)
		}
		c.files = append(c.files, name)
		total += info.Size()
		return nil
	})
	if err != nil {
		return contents{}, err
	}
	if c.program == "" {
		return contents{}, fmt.Errorf("%w: no file can be executed", ErrRefused)
	}
	progress.start("verify", 0, total)
	sum, err := dirhash.Hash1(c.files, func(name string) (io.ReadCloser, error) {
		file, err := root.Open(name)
		if err != nil {
			return nil, err
		}
		return &metered{interruptible{ctx, file}, file, progress}, nil
	})
	c.digest = Digest(sum)
	return c, err
}

// metered is a file that is read with progress.
type metered struct {
	interruptible
	io.Closer
	progress *meter
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.interruptible.Read(p)
	m.progress.add(int64(n))
	return n, err
}

// record is what is known of the package that was fetched under a name.
type record struct {
	Content   Digest    `json:"content"`
	Archive   Digest    `json:"archive,omitempty"`
	Signature Signature `json:"signature"`
	From      string    `json:"from"`
}

// matches tells which of some digests the package has.
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

// recorded reads a record. One that cannot be read is none: the package is fetched again.
func (s *Store) recorded(name string) (record, bool) {
	text, err := s.root.ReadFile(name)
	var r record
	if err != nil || json.Unmarshal(text, &r) != nil {
		return record{}, false
	}
	ok := r.Content.ofContent() && r.Content.sum() != nil && (r.Archive == "" || r.Archive.ofArchive() && r.Archive.sum() != nil)
	return r, ok
}

// put moves a package that was unpacked and verified into its place. If it is there already, as
// it should be, what is in the stage is not needed.
func (s *Store) put(ctx context.Context, st *stage, c contents, r record, p Package) error {
	at := placeOf(c.digest)
	for try := range maxTries {
		err := s.root.Rename(path.Join(st.name, contentName), at)
		if err == nil {
			// Another process may already have found something wrong with it, and put its own there.
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
		// Permission is what is missing if another process seals it in between.
		if err := s.displace(at, st, try); try == maxTries-1 || ignore(err, fs.ErrPermission) != nil {
			return errors.Join(err, bad)
		}
	}
	return s.write(st, recordPath(p), r)
}

const maxTries = 10

// displace takes what is not a package out of a package's place. It goes with the stage.
func (s *Store) displace(at string, st *stage, try int) error {
	info, err := s.root.Lstat(at)
	if err == nil && info.IsDir() { // it is written to when it is moved
		err = s.root.Chmod(at, ownMode)
	}
	if err == nil {
		err = s.root.Rename(at, path.Join(st.name, fmt.Sprintf("displaced-%d", try)))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process was quicker
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

// Collect removes packages that are not named by any of the digests, of either kind, and that have not
// been installed or verified for so long; and what processes that died have left half done. It
// gives the packages that it removed. A program that still runs from a removed package goes on.
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
		r, ok := s.recorded(name)
		if _, named := r.matches(keep); ok && named {
			kept[r.Content] = true
		}
		records[name] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store of providers: %w", err)
	}
	removed, err := s.collectPackages(kept, unused)
	for name, r := range records {
		if _, gone := s.root.Lstat(placeOf(r.Content)); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, ignore(s.root.Remove(name), fs.ErrNotExist))
		}
	}
	return removed, errors.Join(err, s.sweep())
}

func (s *Store) collectPackages(kept map[Digest]bool, unused time.Duration) (removed []Digest, err error) {
	entries, err := fs.ReadDir(s.root.FS(), packagesDir)
	if err != nil {
		return nil, fmt.Errorf("store of providers: %w", err)
	}
	for _, entry := range entries {
		content := contentOf(entry.Name())
		info, gone := entry.Info()
		if gone != nil || kept[content] || s.clock.Since(info.ModTime()) < unused {
			continue
		}
		if err := s.remove(path.Join(packagesDir, entry.Name())); err != nil {
			return removed, fmt.Errorf("store of providers: %w", err)
		}
		if content != "" {
			removed = append(removed, content)
		}
	}
	slices.Sort(removed)
	return removed, nil
}

// remove takes a package away at once, and then its files: nobody sees a part of it.
func (s *Store) remove(at string) error {
	st, err := s.stage()
	if err != nil {
		return err
	}
	return errors.Join(s.displace(at, st, 0), st.close())
}

// contentOf gives the digest of a package by the name of its directory, "" if it is none's.
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
