package providers

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

	"github.com/atoll-dev/atoll/infra/provider"
)

// memory is what a server knows from before a restart:
//
//	catalogs/SUM.catalog   what the package of a content digest has
//	served/NAME.json       which package a Provider had last
//
// Everything in it can be lost, and is found out again.
type memory struct{ catalogs, served string }

func openMemory(dir string) (memory, error) {
	m := memory{filepath.Join(dir, "catalogs"), filepath.Join(dir, "served")}
	for _, d := range []string{m.catalogs, m.served} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return m, fmt.Errorf("open what is known of providers: %w", err)
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

func (m memory) catalog(content string) (*provider.Catalog, error) {
	return provider.ReadCatalog(filepath.Join(m.catalogs, catalogName(content)))
}

func (m memory) keepCatalog(content string, c *provider.Catalog) error {
	return c.WriteFile(filepath.Join(m.catalogs, catalogName(content)))
}

// last is what a Provider had. An error is of nothing, or of what cannot be read.
func (m memory) last(name string) (*known, error) {
	text, err := os.ReadFile(filepath.Join(m.served, name+servedEnd))
	if err != nil {
		return nil, err
	}
	k := &known{}
	return k, json.Unmarshal(text, k)
}

// keep writes what a Provider has now. Who reads after a crash finds the old or the new.
func (m memory) keep(name string, k *known) error {
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

func (m memory) forget(name string) error {
	err := os.Remove(filepath.Join(m.served, name+servedEnd))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes what is of no Provider any more.
func (m memory) sweep(providers map[string]bool) error {
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
		return nil // there is nothing to sweep, then
	}
	out := make([]string, len(entries))
	for i, entry := range entries {
		out[i] = entry.Name()
	}
	return out
}
