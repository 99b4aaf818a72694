package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// inDirectory changes the files of a data directory. They are copied before, because a
// crash between two of them would leave files that do not match.
func (c KeyChange) inDirectory(ctx context.Context, dataDir string, now time.Time, dryRun bool) ([]Key, error) {
	if token := filepath.Join(dataDir, tokenFile); exists(token) {
		return nil, fmt.Errorf("the server of %s shares its keys with others through their datastore: name it with --datastore, and pass --token-file %s", dataDir, token)
	}
	dir := filepath.Join(dataDir, "pki")
	files, err := readKeyFiles(dir)
	if err != nil {
		return nil, err
	}
	if !c.Forget {
		return c.changeFiles(files, dataDir, dir, nil, now, dryRun)
	}
	var keys []Key
	err = useIn(ctx, filepath.Join(dataDir, databaseFile), func(use keyUse, store *Datastore) error {
		if keys, err = c.changeFiles(files, dataDir, dir, use, now, dryRun); err != nil {
			return err
		}
		keys, err = use.kept(ctx, keys, store, now)
		return err
	})
	return keys, err
}

// changeFiles changes the files in a directory, and returns the keys after the change.
func (c KeyChange) changeFiles(files keyFiles, dataDir, dir string, use keyUse, now time.Time, dryRun bool) ([]Key, error) {
	next, err := c.apply(files, use, now)
	if err != nil {
		return nil, err
	}
	copied := filepath.Join(dataDir, "pki.before-rotation")
	if exists(copied) {
		return nil, fmt.Errorf("an earlier rotation was interrupted: copy the files in %s to %s, or keep those there if the server starts with them; then remove %s, and run the command again", copied, dir, copied)
	}
	if !dryRun {
		if err := os.MkdirAll(copied, 0o700); err != nil {
			return nil, fmt.Errorf("copy the keys: %w", err)
		}
		if err := writeKeyFiles(files, copied); err != nil {
			return nil, err
		}
		if err := writeKeyFiles(next, dir); err != nil {
			return nil, fmt.Errorf("%w: the former files are in %s", err, copied)
		}
		if err := os.RemoveAll(copied); err != nil {
			return nil, err
		}
	}
	return next.list()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readKeyFiles(dir string) (keyFiles, error) {
	files := keyFiles{}
	for _, name := range rotatedFiles {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && (name == crossCert || name == encryptionKeys) {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the keys: %w: is this the data directory of a server, and was it ever started?", err)
		}
		if err != nil {
			return nil, fmt.Errorf("read the keys: %w", err)
		}
		files[name] = content
	}
	return files, nil
}

// writeKeyFiles makes the files of a directory equal to the given ones.
func writeKeyFiles(files keyFiles, dir string) error {
	for _, name := range rotatedFiles {
		content, ok := files[name]
		path := filepath.Join(dir, name)
		if !ok {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err := writeIfChanged(path, content); err != nil {
			return err
		}
	}
	return nil
}
