package cli

import (
	"errors"
	"os"

	"github.com/spf13/pflag"
)

// DatastoreVariable names the environment variable for the datastore's URL,
// which unlike a command line no other user can read.
const DatastoreVariable = "ATOLL_DATASTORE"

func addDatastoreFlag(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "datastore", "", "URL of the datastore, such as sqlite:///path/to/file.db or postgres://user@host/database. The default is $"+
		DatastoreVariable+", which is better for a URL with a password.")
}

// datastoreURL is the datastore that a flag names, or else the environment. It is
// not the flag's default, because help would print that.
func datastoreURL(flag string) (string, error) {
	if flag = orEnvironment(flag); flag == "" {
		return "", errors.New("no datastore given: name one with --datastore sqlite:///path/to/file.db, or in $" + DatastoreVariable)
	}
	return flag, nil
}

func orEnvironment(flag string) string {
	if flag == "" {
		return os.Getenv(DatastoreVariable)
	}
	return flag
}
