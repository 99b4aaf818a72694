package server

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atoll-dev/atoll/kv"
)

// Servers of one datastore are one Atoll: certificates and tokens that one of
// them signed, all of them accept. So they share the certificate authority and the
// key of service accounts, in the datastore, sealed with a token that the
// datastore does not hold: whoever reads a backup of it cannot sign anything.

// systemKeyspace holds what is of the servers, and of no workspace.
const systemKeyspace = "atoll.system"

// sharedKey is where in it.
const sharedKey = "/servers/shared-keys/v1"

// sharedFiles of DIR/pki are the same for all servers.
var sharedFiles = []string{caCert, caKey, serviceAccountKey}

const (
	tokenFile = "token"
	// minTokenLength keeps short passwords out; a generated token has 26.
	minTokenLength = 16
)

// sealed is what the datastore holds.
type sealed struct {
	Salt, Nonce, Box []byte
}

// shareKeys makes the directory's shared files those of the datastore, or, in a
// new datastore, puts them there. Servers may do so at the same moment: one of
// them makes the keys, the others take them.
func shareKeys(ctx context.Context, keyspace kv.Keyspace, cfg *Config, dir string) error {
	held, err := readSealed(ctx, keyspace)
	if err != nil {
		return err
	}
	token, err := readToken(cfg, held == nil)
	if err != nil {
		return err
	}
	if held == nil {
		if held, err = offerKeys(ctx, keyspace, cfg, token, dir); err != nil {
			return err
		}
	}
	files, err := held.open(token)
	if err != nil {
		return fmt.Errorf("%w: another server's token opens them: copy its file DATA_DIR/%s and name it with --token-file", err, tokenFile)
	}
	return installShared(files, dir)
}

// offerKeys stores keys for all servers, and returns those that are stored in the
// end: another server may have been first. A directory that has keys already
// gives its own: it is that of a server whose clients should not notice that it
// moves to a shared datastore.
func offerKeys(ctx context.Context, keyspace kv.Keyspace, cfg *Config, token, dir string) (*sealed, error) {
	if _, err := os.Stat(filepath.Join(dir, caCert)); errors.Is(err, fs.ErrNotExist) {
		if dir, err = os.MkdirTemp(cfg.DataDir, ".pki-*"); err != nil {
			return nil, fmt.Errorf("make the servers' shared keys: %w", err)
		}
		defer os.RemoveAll(dir)
	}
	if _, err := openPKI(dir, cfg.servingNames(), cfg.Clock.Now()); err != nil {
		return nil, err
	}
	return putSealed(ctx, keyspace, token, dir)
}

// readToken finds the token that was given, or that of the last start, or, for
// a new datastore, makes one.
func readToken(cfg *Config, fresh bool) (string, error) {
	file, given := cfg.TokenFile, cfg.TokenFile != ""
	if !given {
		file = filepath.Join(cfg.DataDir, tokenFile)
	}
	content, err := os.ReadFile(file)
	switch {
	case err == nil:
		token := string(bytes.TrimSpace(content))
		if len(token) < minTokenLength {
			return "", fmt.Errorf("token in %s has %d characters: it needs at least %d, such as `openssl rand -hex 16` prints", file, len(token), minTokenLength)
		}
		if !given {
			return token, nil
		}
		// The next start needs no --token-file.
		return token, writeIfChanged(filepath.Join(cfg.DataDir, tokenFile), []byte(token+"\n"))
	case !errors.Is(err, fs.ErrNotExist) || given:
		return "", fmt.Errorf("read token: %w", err)
	case !fresh:
		return "", fmt.Errorf("the datastore belongs to an Atoll whose token is not here: copy the file DATA_DIR/%s of one of its servers and name it with --token-file", tokenFile)
	}
	token := rand.Text()
	return token, writeFile(file, []byte(token+"\n"))
}

func readSealed(ctx context.Context, keyspace kv.Keyspace) (*sealed, error) {
	res, err := keyspace.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}})
	if err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w", err)
	}
	if len(res.KVs) == 0 {
		return nil, nil
	}
	held := new(sealed)
	if err := json.Unmarshal(res.KVs[0].Value, held); err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w: restore the datastore from a backup", err)
	}
	return held, nil
}

// putSealed stores the directory's files unless another server was first, and
// returns what is stored then.
func putSealed(ctx context.Context, keyspace kv.Keyspace, token, dir string) (*sealed, error) {
	ours, err := seal(token, dir)
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(ours)
	if err != nil {
		return nil, err
	}
	key := []byte(sharedKey)
	res, err := keyspace.Txn(ctx, kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareCreate, Op: kv.Equal}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value}}},
	})
	if err != nil {
		return nil, fmt.Errorf("share the servers' keys: %w", err)
	}
	if res.Succeeded {
		return ours, nil
	}
	return readSealed(ctx, keyspace)
}

func seal(token, dir string) (*sealed, error) {
	files := map[string][]byte{}
	for _, name := range sharedFiles {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("share the servers' keys: %w", err)
		}
		files[name] = content
	}
	plain, err := json.Marshal(files)
	if err != nil {
		return nil, err
	}
	s := &sealed{Salt: make([]byte, 16)}
	rand.Read(s.Salt)
	box, err := sealer(token, s.Salt)
	if err != nil {
		return nil, err
	}
	s.Nonce = make([]byte, box.NonceSize())
	rand.Read(s.Nonce)
	s.Box = box.Seal(nil, s.Nonce, plain, []byte(sharedKey))
	return s, nil
}

func (s *sealed) open(token string) (map[string][]byte, error) {
	box, err := sealer(token, s.Salt)
	if err != nil {
		return nil, err
	}
	plain, err := box.Open(nil, s.Nonce, s.Box, []byte(sharedKey))
	if err != nil {
		return nil, errors.New("the token does not open the keys that the datastore's servers share")
	}
	files := map[string][]byte{}
	return files, json.Unmarshal(plain, &files)
}

// iterations is what OWASP asks of PBKDF2 with SHA-256 (2023), for tokens that
// people chose themselves.
const iterations = 600_000

func sealer(token string, salt []byte) (cipher.AEAD, error) {
	key, err := pbkdf2.Key(sha256.New, token, salt, iterations, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// installShared writes what is missing. What is there and differs was another
// Atoll's: its kubeconfigs are out in the world, so nothing is overwritten.
func installShared(files map[string][]byte, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	for _, name := range sharedFiles {
		path := filepath.Join(dir, name)
		old, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := writeFile(path, files[name]); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("read %s: %w", path, err)
		case !bytes.Equal(old, files[name]):
			return fmt.Errorf("%s is not the one that the datastore's servers share: the directory belongs to another Atoll: use an empty one with --data-dir", path)
		}
	}
	return nil
}
