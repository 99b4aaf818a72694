package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxAccessFile bounds the size of a file of access rules.
const maxAccessFile = 1 << 20

// accessFileInterval is how often the file is read again.
const accessFileInterval = time.Second

// readAccessFile reads the rules of a file, and also returns its content.
func readAccessFile(path string) (accessRules, []byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the access of clients: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxAccessFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read the access of clients: %w", err)
	}
	if len(content) > maxAccessFile {
		return nil, nil, fmt.Errorf("read the access of clients: %s has more than %d bytes", path, maxAccessFile)
	}
	rules, err := parseAccess(content)
	if err != nil {
		return nil, content, fmt.Errorf("read the access of clients from %s: %w", path, err)
	}
	return rules, content, nil
}

// followAccessFile calls replace with the rules of each new content until ctx ends, and
// report with the error of each content without valid rules.
func followAccessFile(ctx context.Context, path string, content []byte, replace func(accessRules), report func(error)) {
	tick := time.NewTicker(accessFileInterval)
	defer tick.Stop()
	reported := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rules, now, err := readAccessFile(path)
		switch {
		case err != nil:
			if err.Error() != reported {
				reported = err.Error()
				report(err)
			}
			continue
		case !bytes.Equal(now, content):
			content = now
			replace(rules)
		}
		reported = ""
	}
}

// parseAccess parses rules strictly: a field that it ignored could be one that was meant to
// restrict a client.
func parseAccess(content []byte) (accessRules, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) != 1 {
		return nil, errors.New("it is empty: it needs a list `users`")
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	top, err := fields(doc.Content[0], "users")
	if err != nil {
		return nil, err
	}
	users := top["users"]
	if users == nil || users.Kind != yaml.SequenceNode || len(users.Content) == 0 {
		return nil, errors.New("`users` has to be a list of at least one user")
	}
	var rules accessRules
	for i, node := range users.Content {
		rule, err := parseAccessRule(node)
		if err == nil && slices.ContainsFunc(rules, func(r accessRule) bool {
			return r.commonName == rule.commonName && r.prefix == rule.prefix
		}) {
			err = lineError(node, "another rule has the same commonName %q and prefix %q", rule.commonName, rule.prefix)
		}
		if err != nil {
			return nil, fmt.Errorf("users[%d]: %w", i, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func parseAccessRule(node *yaml.Node) (rule accessRule, err error) {
	values, err := fields(node, "commonName", "prefix", "access")
	if err != nil {
		return rule, err
	}
	texts := map[string]string{}
	for _, name := range []string{"commonName", "prefix", "access"} {
		if v := values[name]; v != nil {
			if v.Kind != yaml.ScalarNode || v.Tag != "!!str" {
				return rule, lineError(v, "%s has to be a text; put it in quotes", name)
			}
			texts[name] = v.Value
		}
	}
	rule = accessRule{texts["commonName"], texts["prefix"], accessLevel(texts["access"])}
	switch rule.access {
	case accessRead, accessReadWrite, accessAdmin:
	default:
		return rule, lineError(node, "access is %q: use read, readwrite or admin", rule.access)
	}
	switch {
	case rule.commonName == "":
		return rule, lineError(node, "commonName is missing: it is that of the client's certificate")
	case rule.access == accessAdmin && values["prefix"] != nil:
		return rule, lineError(node, "prefix is set: an admin has access to all keys, so remove it")
	case rule.access != accessAdmin && values["prefix"] == nil:
		return rule, lineError(node, "prefix is missing: use \"\" for all keys")
	}
	return rule, nil
}

// fields returns the fields of a mapping. A field that is not known is an error.
func fields(node *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, lineError(node, "fields are expected: %s", known)
	}
	out := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i]
		if !slices.Contains(known, name.Value) {
			return nil, lineError(name, "unknown field %q: the fields are %s", name.Value, known)
		}
		if out[name.Value] != nil {
			return nil, lineError(name, "%s is set twice", name.Value)
		}
		out[name.Value] = node.Content[i+1]
	}
	return out, nil
}

func lineError(node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", node.Line, fmt.Sprintf(format, args...))
}
