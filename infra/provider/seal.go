//go:build unix

package provider

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// keyBytes is how long the key of a journal is.
const keyBytes = 32

// newSeal seals what is told in a journal, so that its files alone tell nothing, nor can be made up by who
// has no key. Nonces are random: far fewer answers than 2³² are ever sealed with one key.
func newSeal(key []byte) (cipher.AEAD, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("the key of the journal of calls has %d bytes: give it %d", len(key), keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// ReadKey reads the key of a journal from a file, and makes both if there is none. Without it what the journal says can no longer be
// read; that something was begun can.
func ReadKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, keyBytes)
		rand.Read(key) // never fails
		err = writeOnce(path, key, os.Link)
		if errors.Is(err, fs.ErrExist) { // somebody else was faster
			key, err = os.ReadFile(path)
		}
	}
	if err == nil && len(key) != keyBytes {
		err = fmt.Errorf("%s has %d bytes and not %d: remove it, and answers that are still in the journal are given up", path, len(key), keyBytes)
	}
	return key, err
}

// writeOnce writes a file that is there wholly or not at all, after a loss of power, too.
func writeOnce(path string, content []byte, into func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporaryPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it was renamed
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := into(f.Name(), path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// identityFile is what a journal is called, beside the calls that it knows. It goes with them: who loses the one must not
// go on under the name of the other, and make calls again that it does not know any more.
const identityFile = "journal"

// An identity is what a journal is called.
type identity struct {
	Name string `json:"name"`
	// Inode is that of the file that it stands in. A copy, or what a backup gave back, has another: it does not know
	// what the original has come to know since.
	Inode uint64 `json:"inode"`
}

// identify gives the journal's name, and gives it one if it has none of its own.
func (j *journal) identify() (string, error) {
	path := filepath.Join(j.dir, identityFile)
	for {
		name, err := j.readIdentity(path)
		if err != nil || name != "" {
			return name, err
		}
		if err := j.writeIdentity(path); err != nil {
			return "", err
		}
	}
}

// readIdentity gives no name if there is none, or that of another journal.
func (j *journal) readIdentity(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	inode, err := inodeOf(f)
	if err != nil {
		return "", err
	}
	var is identity
	if json.NewDecoder(f).Decode(&is) != nil || is.Inode != inode {
		return "", nil
	}
	return is.Name, nil
}

// writeIdentity makes up a name, with the machine's in it for people.
func (j *journal) writeIdentity(path string) error {
	var random [8]byte
	rand.Read(random[:]) // never fails
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	f, err := os.CreateTemp(j.dir, temporaryPrefix)
	if err != nil {
		return err
	}
	defer f.Close()
	defer os.Remove(f.Name()) // fails once it was renamed
	inode, err := inodeOf(f)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(identity{host + "-" + hex.EncodeToString(random[:]), inode}); err != nil {
		return err
	}
	if _, err := f.Write(text.Bytes()); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), os.Rename(f.Name(), path)); err != nil {
		return err
	}
	return syncDirectory(j.dir)
}

func inodeOf(f *os.File) (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("the file system does not tell files apart")
	}
	return uint64(stat.Ino), nil
}
