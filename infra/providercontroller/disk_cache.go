package providercontroller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-dev/atoll/infra/plugin"
)

// diskCache holds what a server knows from before a restart:
//
//	catalogs/SUM.catalog   the types of the package with a content digest
//	served/NAME.json       the last package of a Provider
//
// All of it can be lost and is then determined again.
type diskCache struct{ catalogs, served string }

func openDiskCache(dir string) (diskCache, error) {
	m := diskCache{filepath.Join(dir, "catalogs"), filepath.Join(dir, "served")}
	for _, d := range []string{m.catalogs, m.served} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return m, fmt.Errorf("open the provider cache: %w", err)
		}
	}
	return m, nil
}

const (
	catalogEnd = ".catalog"
	servedEnd  = ".json"
)

func catalogName(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:16]) + catalogEnd
}

func (m diskCache) catalog(content string) (*plugin.Catalog, error) {
	return plugin.ReadCatalog(filepath.Join(m.catalogs, catalogName(content)))
}

func (m diskCache) keepCatalog(content string, c *plugin.Catalog) error {
	return c.WriteFile(filepath.Join(m.catalogs, catalogName(content)))
}

// last returns the last package of a Provider. The error is non-nil if there is none or it cannot
// be read.
func (m diskCache) last(name string) (*packageRecord, error) {
	text, err := os.ReadFile(filepath.Join(m.served, name+servedEnd))
	if err != nil {
		return nil, err
	}
	k := &packageRecord{}
	return k, json.Unmarshal(text, k)
}

// keep records the package of a Provider. After a crash, readers find the old or the new record.
func (m diskCache) keep(name string, k *packageRecord) error {
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(m.served, ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(m.served, name+servedEnd))
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

func (m diskCache) forget(name string) error {
	err := os.Remove(filepath.Join(m.served, name+servedEnd))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes the records of Providers that no longer exist.
func (m diskCache) sweep(providers map[string]bool) error {
	var errs []error
	needed := map[string]bool{}
	for _, name := range names(m.served) {
		provider, ours := strings.CutSuffix(name, servedEnd)
		last, err := m.last(provider)
		if ours && providers[provider] && err == nil {
			needed[catalogName(last.Content)] = true
			continue
		}
		errs = append(errs, os.Remove(filepath.Join(m.served, name)))
	}
	for _, name := range names(m.catalogs) {
		if !needed[name] {
			errs = append(errs, os.Remove(filepath.Join(m.catalogs, name)))
		}
	}
	return errors.Join(errs...)
}

func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // then there is nothing to sweep
	}
	out := make([]string, len(entries))
	for i, entry := range entries {
		out[i] = entry.Name()
	}
	return out
}
