package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// providersDir is the directory for providers in the data directory.
const providersDir = "providers"

// maxRunDirLen is the maximum length of a directory with sockets below it; see
// plugin.Config.
const maxRunDirLen = 70

// openProviderDirs returns the directory for providers, which it creates, and the one for
// the sockets of their processes. The caller closes closer, which may be nil.
func openProviderDirs(dataDir string, users providerUserNames) (dir, run string, closer io.Closer, err error) {
	dir = filepath.Join(dataDir, providersDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", nil, fmt.Errorf("create the directory for providers: %w", err)
	}
	reachable := true
	if users.others() {
		if err := grantTraversal(dataDir, dir); err != nil {
			if users.fixed != nil || !errors.Is(err, errNoTraversal) {
				return "", "", nil, err
			}
			// The user is Atoll's choice, not the administrator's, so that no data directory
			// stops working. Providers then cannot read their own packages by path, but run.
			reachable = false
		}
	}
	run, closer, err = runDir(dir, reachable)
	return dir, run, closer, err
}

// journalKey returns the file of the key that encrypts the answers in the journal of provider calls. It is
// with the other keys, which can be in memory while the providers are on a disk. Servers of earlier
// versions have it beside the journal.
func journalKey(dataDir string) string {
	before := filepath.Join(dataDir, providersDir, "calls.key")
	if _, err := os.Stat(before); err == nil {
		return before
	}
	return filepath.Join(dataDir, "pki", "provider-calls.key")
}

// errNoTraversal reports a data directory that other users cannot reach.
var errNoTraversal = errors.New("prepare to run providers as another user")

// runDir returns the directory for the sockets of providers' processes: below the data
// directory if its path is short enough and reachable for their users, otherwise a
// temporary one, with a closer.
func runDir(dir string, reachable bool) (string, io.Closer, error) {
	run := filepath.Join(dir, "run")
	if len(run) <= maxRunDirLen && reachable {
		return run, nil, nil
	}
	// The name is deterministic, so that the next server finds the directory again. It
	// removes files that a killed server left there, except those that its keepers
	// still need.
	sum := sha256.Sum256([]byte(dir))
	run = filepath.Join(os.TempDir(), "atoll-"+hex.EncodeToString(sum[:8]))
	if err := os.Mkdir(run, 0o700); err != nil && !isOwn(run) {
		if run, err = os.MkdirTemp("", "atoll-"); err != nil {
			return "", nil, fmt.Errorf("create a directory for the sockets of providers: %w", err)
		}
	}
	return run, tempRunDir(run), nil
}

// isOwn reports whether a path is a directory owned by this process's user, and not a
// symbolic link: other users can write to its parent.
func isOwn(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// tempRunDir is a directory that is removed on Close, unless a keeper still works in
// it.
type tempRunDir string

func (e tempRunDir) Close() error {
	if err := os.Remove(string(e)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// grantTraversal lets another user reach the providers' directory and nothing else: it
// may pass through the data directory, and all other entries there become private to
// their owner.
func grantTraversal(dataDir, providersDir string) error {
	for dir := filepath.Dir(dataDir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("prepare to run providers as another user: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%w: only the owner of %s can traverse it: run chmod o+x on it, choose another --data-dir, or omit --provider-user", errNoTraversal, dir)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return fmt.Errorf("prepare to run providers as another user: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dataDir, entry.Name())
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && (path == providersDir || info.Mode()&fs.ModeSymlink != 0) {
			continue
		}
		if err == nil {
			err = os.Chmod(path, info.Mode().Perm()&^0o077)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prepare to run providers as another user: %w", err)
		}
	}
	return errors.Join(os.Chmod(providersDir, 0o711), os.Chmod(dataDir, 0o711))
}
