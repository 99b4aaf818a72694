package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestSimultaneousStarts checks that servers that start at the same moment on an empty
// database create one schema and one keyspace.
func TestSimultaneousStarts(t *testing.T) {
	eachDatabase(t, testSimultaneousStarts)
}

func testSimultaneousStarts(t *testing.T, d *database) {
	for range 2 {
		option := d.schema(t)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				<-begin
				// The duration is irrelevant, also on a slow machine.
				db, err := Open(t.Context(), d.url, option, WithMaxConns(4), WithTimeout(time.Minute))
				if err != nil {
					t.Errorf("server %d: %v", i, err)
					return
				}
				defer db.Close()
				table, err := db.Open(t.Context(), "default")
				if err != nil {
					t.Errorf("server %d: %v", i, err)
					return
				}
				err = table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, fmt.Sprint("key", i), "v") })
				if err != nil {
					t.Errorf("server %d: %v", i, err)
				}
			})
		}
		close(begin)
		wg.Wait()
		db := openURL(t, d.url, option)
		names, err := db.Keyspaces(t.Context())
		head, herr := openTable(t, db, "default").Head(t.Context())
		if err != nil || herr != nil || len(names) != 1 || head.Revision != 9 {
			t.Error(names, err, head, herr)
		}
	}
}

// TestSchemaByAdministrator checks that a role that may only create tables in its own
// schema is sufficient, and that without the schema the error names the remedy.
func TestSchemaByAdministrator(t *testing.T) {
	s := server(t)
	sql(t, s, `DROP SCHEMA IF EXISTS given CASCADE; DROP ROLE IF EXISTS humble; CREATE ROLE humble LOGIN PASSWORD 'geheim'`)
	url := "postgres://humble:geheim@" + s.Address() + "/postgres?sslmode=disable"
	_, err := Open(t.Context(), url, WithSchema("given"))
	if !errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), "lacks a privilege") {
		t.Errorf("without a schema: %v", err)
	}
	sql(t, s, `CREATE SCHEMA given AUTHORIZATION humble`)
	write(t, openTable(t, openURL(t, url, WithSchema("given")), "default"), "a", "1")
}

// TestRefused checks that a database that could lose acknowledged writes is refused, with
// the reason and the remedy.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := own(t)
	refused := func(t *testing.T, url string, want error, say ...string) {
		t.Helper()
		_, err := Open(t.Context(), url, WithTimeout(2*time.Second))
		if !errors.Is(err, want) {
			t.Errorf("%v", err)
			return
		}
		for _, word := range say {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not contain %q", err, word)
			}
		}
	}
	set := func(t *testing.T, name, value string) {
		t.Helper()
		if err := s.Set(map[string]string{name: value}); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is "+value, func() bool { return sql(t, s, "SHOW "+name) == value })
	}
	for name, remedy := range map[string]string{"fsync": "set fsync = on", "full_page_writes": "set full_page_writes = on"} {
		t.Run(name, func(t *testing.T) {
			set(t, name, "off")
			refused(t, s.URL(), kv.ErrInvalidRequest, name+" is off", remedy)
			set(t, name, "on")
		})
	}
	t.Run("asynchronous commit of the role is overridden", func(t *testing.T) {
		sql(t, s, `ALTER ROLE postgres SET synchronous_commit = off`)
		db := openURL(t, s.URL())
		got := ""
		err := db.read(t.Context(), "look", time.Minute, func(c *conn) error {
			return c.simple("SHOW synchronous_commit", func(cols [][]byte) { got = string(cols[0]) })
		})
		if err != nil || got != "on" {
			t.Error(got, err)
		}
		sql(t, s, `ALTER ROLE postgres RESET ALL`)
	})
	t.Run("encoding", func(t *testing.T) {
		sql(t, s, `CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0`)
		refused(t, strings.Replace(s.URL(), "/postgres?", "/latin?", 1), kv.ErrInvalidRequest, "LATIN1", "ENCODING 'UTF8'")
	})
	t.Run("unlogged", func(t *testing.T) {
		openURL(t, s.URL()).Close()
		sql(t, s, `ALTER TABLE atoll.log SET UNLOGGED`)
		refused(t, s.URL(), kv.ErrInvalidRequest, "log", "SET LOGGED")
		sql(t, s, `ALTER TABLE atoll.log SET LOGGED`)
	})
	t.Run("newer", func(t *testing.T) {
		sql(t, s, `UPDATE atoll.meta SET version = version + 1`)
		refused(t, s.URL(), kv.ErrNewerSchema, "upgrade Atoll")
		sql(t, s, `UPDATE atoll.meta SET version = version - 1`)
	})
	t.Run("too many connections", func(t *testing.T) {
		refused(t, s.URL()+"&pool_max_conns=500", kv.ErrInvalidRequest, "pool_max_conns", "max_connections")
	})
	t.Run("standby", func(t *testing.T) {
		standby, err := s.Standby(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { standby.Stop() })
		// It may be about to be promoted, so Open waits.
		refused(t, standby.URL(), kv.ErrUnavailable, "standby", "promote")
	})
}

// TestSecrets checks that no error contains a password.
func TestSecrets(t *testing.T) {
	t.Parallel()
	few, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, url := range []string{
		"postgres://me:geheim@127.0.0.1:1/db?sslmode=disable",
		"postgres://me:geheim@127.0.0.1:notaport/db",
		"postgres://me:gehe im:geheim@@127.0.0.1:1/db",
		// Characters that end the password of a URL.
		"postgres://me:p@ss/geheim:x@127.0.0.1:1/db",
		"postgres://me:p@ss/geheim@127.0.0.1:1,127.0.0.1:2/db",
		"postgres://me:p?geheim@127.0.0.1:1/db",
		"postgres://me:p#geheim@127.0.0.1:1/db",
		"postgres://me:p@ss@word/geheim@127.0.0.1:1/db",
		"host=127.0.0.1 port=1 user=me password=geheim dbname=db sslmode=disable",
		"host=127.0.0.1 password='geheim",
	} {
		_, err := Open(few, url, WithTimeout(10*time.Millisecond))
		if err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", url, err)
		}
		if strings.Contains(url, "me:p") && !strings.Contains(err.Error(), "percent-encoded") {
			t.Errorf("%s: %v does not name the remedy", url, err)
		}
	}
	for _, url := range []string{
		"postgres://me@corp:p%40ss%2Fword@127.0.0.1:1/db?application_name=a@b",
		"postgres://127.0.0.1:1/db?user=me@corp",
		"postgres://[::1]:1/db?user=me@corp",
		"postgres://127.0.0.1:1,127.0.0.1:2/db?user=me@corp",
		"postgres:///db?host=/run/postgresql&user=me@corp",
	} {
		if err := checkEncoded(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
