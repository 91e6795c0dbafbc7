package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseEtcdFlags splits etcd's arguments as Go's flag package does, by name without dashes; the last of several wins.
//
// Which flags are boolean differs between versions of etcd, and is not needed: etcd accepts no argument that is not a
// flag, so what follows a flag and does not begin with a dash is its value.
func parseEtcdFlags(args []string) (map[string]string, error) {
	if len(args) > 0 && (args[0] == "gateway" || args[0] == "grpc-proxy") {
		return nil, ErrNotServer
	}
	flags := map[string]string{}
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			if i+1 < len(args) {
				return nil, fmt.Errorf("etcd argument %q is not a flag", args[i+1])
			}
			break
		}
		name, value, hasValue, err := splitEtcdFlag(args[i])
		if err != nil {
			return nil, err
		}
		switch {
		case hasValue:
		case isEtcdSwitch(name):
			value = "true"
		case takesNextArg(name, args[i+1:]):
			i++
			value = args[i]
		case isEtcdString(name):
			return nil, fmt.Errorf("etcd flag --%s needs a value", name)
		default:
			value = "true"
		}
		flags[name] = value
	}
	for _, name := range []string{"version", "help", "h"} {
		if on, err := strconv.ParseBool(flags[name]); err == nil && on {
			return nil, ErrNotServer
		}
	}
	return flags, nil
}

func splitEtcdFlag(arg string) (name, value string, hasValue bool, err error) {
	name, ok := strings.CutPrefix(arg, "-")
	if !ok || name == "" {
		return "", "", false, fmt.Errorf("etcd argument %q is not a flag", arg)
	}
	name = strings.TrimPrefix(name, "-")
	name, value, hasValue = strings.Cut(name, "=")
	if name == "" || name[0] == '-' {
		return "", "", false, fmt.Errorf("etcd argument %q is not a flag", arg)
	}
	return name, value, hasValue, nil
}

// isEtcdSwitch names the boolean flags that are read here; they take a value only after '='.
func isEtcdSwitch(name string) bool {
	switch name {
	case "version", "help", "h", "client-cert-auth", "auto-tls":
		return true
	}
	return false
}

// isEtcdString names the other flags that are read here; they take the next argument whatever it looks like.
func isEtcdString(name string) bool {
	switch name {
	case "name", "data-dir", "wal-dir", "listen-client-urls", "advertise-client-urls", "initial-advertise-peer-urls",
		"initial-cluster", "initial-cluster-token", "discovery", "discovery-srv", "discovery-srv-name", "discovery-endpoints",
		"cert-file", "key-file", "client-cert-file", "client-key-file", "trusted-ca-file", etcdConfigFileFlag:
		return true
	}
	return false
}

func takesNextArg(name string, rest []string) bool {
	if len(rest) == 0 {
		return false
	}
	next := rest[0]
	if isEtcdString(name) || !strings.HasPrefix(next, "-") || next == "-" {
		return true
	}
	_, err := strconv.ParseFloat(next, 64) // a negative number is a value
	return err == nil
}

// readEtcdFile reads etcd's configuration file, YAML or JSON. Its keys are the flags' names, but for TLS, which has a
// section of its own, and for discovery.
func readEtcdFile(path string) (etcdSettings, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return etcdSettings{}, fmt.Errorf("etcd configuration file: %w", err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(b, &file); err != nil {
		return etcdSettings{}, fmt.Errorf("etcd configuration file %s: %w", path, err)
	}
	settings := map[string]string{}
	add := func(section map[string]any) {
		for k, v := range section {
			switch v.(type) {
			case map[string]any, []any, nil:
			default:
				settings[k] = fmt.Sprint(v)
			}
		}
	}
	add(file)
	// Only the section counts for these, whatever stands at the top.
	for _, name := range []string{"cert-file", "key-file", "client-cert-file", "client-key-file", "trusted-ca-file", "client-cert-auth", "auto-tls"} {
		delete(settings, name)
	}
	if tls, ok := file["client-transport-security"].(map[string]any); ok {
		add(tls)
	}
	if d, ok := file["discovery-config"].(map[string]any); ok && d["discovery-endpoints"] != nil {
		settings["discovery-endpoints"] = fmt.Sprint(d["discovery-endpoints"])
	}
	return etcdSettings{get: func(name string) (string, bool) { v, ok := settings[name]; return v, ok }}, nil
}
