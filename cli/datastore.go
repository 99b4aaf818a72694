package cli

import (
	"errors"
	"os"

	"github.com/spf13/pflag"
)

// DatastoreVariable is the environment variable for the datastore's URL. Unlike a
// command line, other users cannot read it.
const DatastoreVariable = "ATOLL_DATASTORE"

func addDatastoreFlag(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "datastore", "", "URL of the datastore, such as sqlite:///path/to/file.db or postgres://user@host/database. The default is $"+
		DatastoreVariable+". Use that for a URL with a password.")
}

// datastoreURL returns the datastore's URL from the flag or else from the environment.
// The environment is not the flag's default value, because help would print it.
func datastoreURL(flag string) (string, error) {
	if flag = orEnvironment(flag); flag == "" {
		return "", errors.New("no datastore: set --datastore sqlite:///path/to/file.db, or $" + DatastoreVariable)
	}
	return flag, nil
}

func orEnvironment(flag string) string {
	if flag == "" {
		return os.Getenv(DatastoreVariable)
	}
	return flag
}
