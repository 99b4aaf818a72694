//go:build unix

package plugin

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

// keyBytes is the length of a journal's key.
const keyBytes = 32

// newSeal returns the cipher that encrypts and authenticates answers in a journal. Without the key,
// the journal's files reveal no answers and none can be forged. Nonces are random: far fewer than
// 2³² answers are encrypted with one key.
func newSeal(key []byte) (cipher.AEAD, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("the key of the journal of calls has %d bytes; it must have %d", len(key), keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// ReadKey reads the key of a journal from a file, and creates the file if it does not exist.
// Without the key, recorded answers cannot be read; that a call was begun is still known.
func ReadKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, keyBytes)
		rand.Read(key) // never fails
		err = writeOnce(path, key, os.Link)
		if errors.Is(err, fs.ErrExist) { // another process created it first
			key, err = os.ReadFile(path)
		}
	}
	if err == nil && len(key) != keyBytes {
		err = fmt.Errorf("%s has %d bytes instead of %d; remove it, which loses the answers that are still in the journal", path, len(key), keyBytes)
	}
	return key, err
}

// writeOnce writes a file atomically: it exists completely or not at all, even after a loss of
// power.
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

// identityFile holds the journal's name, beside the records of calls. If the records are lost, the
// name must be lost as well: a journal with the old name but without its records would repeat
// calls.
const identityFile = "journal"

// An identity is the name of a journal.
type identity struct {
	Name string `json:"name"`
	// Inode is the inode of the identity file. A copy or a restored backup has another inode: it
	// lacks the calls that the original has recorded since.
	Inode uint64 `json:"inode"`
}

// identify returns the journal's name, and creates one if the journal has none of its own.
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

// readIdentity returns "" if there is no name, or if it belongs to another journal.
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

// writeIdentity creates a name. It contains the host name, for people.
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
		return 0, errors.New("the file system has no inode numbers")
	}
	return uint64(stat.Ino), nil
}
