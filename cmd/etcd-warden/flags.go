package main

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// Flag categories, in the order in which --help shows them.
const (
	catChild = "1. Child"
	catOwner = "2. Ownership"
	catStore = "3. Store"
	catHTTP  = "4. Observation"
)

// env gives a flag its variable: WARDEN_ and the flag's name in capitals.
func env(name string) []string {
	return []string{"WARDEN_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
}

func stringFlag(cat, name, value, usage string) cli.Flag {
	return &cli.StringFlag{Name: name, Value: value, Usage: usage, EnvVars: env(name), Category: cat}
}

func durationFlag(cat, name string, value time.Duration, usage string) cli.Flag {
	return &cli.DurationFlag{Name: name, Value: value, Usage: usage, EnvVars: env(name), Category: cat}
}

func intFlag(cat, name string, value int, usage string) cli.Flag {
	return &cli.IntFlag{Name: name, Value: value, Usage: usage, EnvVars: env(name), Category: cat}
}

func boolFlag(cat, name, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Usage: usage, EnvVars: env(name), Category: cat}
}

// commonFlags belong to every command that does something.
func commonFlags() []cli.Flag {
	return []cli.Flag{
		stringFlag(catHTTP, "config", "", "read settings from `FILE` (default "+defaultConfigFile+" where it exists); flags beat the environment, which beats the file"),
		stringFlag(catHTTP, "log-level", defaultLogLevel, "`LEVEL` of our own log: debug, info, warn, error"),
		stringFlag(catHTTP, "log-format", "auto", "`FORMAT` of our own log on stderr: json, console, or auto (console on a terminal)"),
	}
}

func storeFlags() []cli.Flag {
	return []cli.Flag{
		stringFlag(catStore, "store", "", "`URL` of the store: s3://bucket/prefix?endpoint=https://host&region=… or file:///an/existing/directory; credentials come from AWS_*"),
	}
}

func ownerFlags() []cli.Flag {
	d := ownership.Defaults()
	return []cli.Flag{
		stringFlag(catOwner, "owner-name", "", "absolute DNS `NAME` (with its last dot) of the TXT record that says who owns the cluster"),
		stringFlag(catOwner, "owner-id", "", "our `ID`: the value of the record when the cluster is ours"),
		stringFlag(catOwner, "owner-id-pattern", d.IDPattern, "`REGEXP` of the values that may be an owner; any other value is unclear, not a loss"),
		stringFlag(catOwner, "owner-servers", "", "DNS `SERVERS` to ask, host:port,… by address (default: those of resolv.conf, read at each poll)"),
		stringFlag(catOwner, "owner-absent", d.Absent, "what a missing record means: suspect or lost"),
		durationFlag(catOwner, "owner-interval", d.Interval, "between two polls while we are owner"),
		durationFlag(catOwner, "owner-suspect-interval", d.SuspectInterval, "between two polls while in doubt"),
		durationFlag(catOwner, "owner-poll-timeout", d.PollTimeout, "for one poll, UDP and TCP together"),
		intFlag(catOwner, "owner-lost-count", d.LostCount, "answers in a row that name another owner and so decide the loss"),
		intFlag(catOwner, "owner-regain-count", d.RegainCount, "answers in a row that name us before ownership is believed again"),
		durationFlag(catOwner, "owner-store-check", d.StoreCheck, "between two looks at the journal while something is waited for (an owner looks at a sixth of that rate)"),
		durationFlag(catOwner, "owner-record-ttl", d.RecordTTL, "TTL that the record is published with"),
		durationFlag(catOwner, "owner-max-gap", d.MaxGap, "longest silence of the record that is bridged without a new entry in the journal"),
		durationFlag(catOwner, "owner-term-grace", d.TermGrace, "from TERM to KILL in a handover, at most (KILL comes as soon as etcd is quiet)"),
		durationFlag(catOwner, "owner-lease", d.Lease, "how long etcd may serve without a confirmation by DNS (0: for ever, only with --owner-unsafe-no-lease)"),
		boolFlag(catOwner, "owner-unsafe-no-lease", "allow --owner-lease=0: a site cut off from DNS then serves for ever, beside its successor"),
		durationFlag(catOwner, "wait-final", d.WaitFinal, "how long a new owner waits for the old one's final snapshot before it declares the generation abandoned"),
		stringFlag(catOwner, "start-without-store", d.StartWithoutStore, "with ownership and an unreachable store at start: never, or if-ours"),
	}
}

func runFlags() []cli.Flag {
	return slices.Concat(commonFlags(), ownerFlags(), storeFlags(), scheduleFlags(), []cli.Flag{
		boolFlag(catStore, "take-over", "the instance that holds the generation under our own --owner-id is gone for good: do not wait for it"),
		&cli.Uint64Flag{Name: "accept-damaged", Usage: "generation `NUMBER` ended with damaged files: go on from the newest snapshot there is, and lose what is missing", EnvVars: env("accept-damaged"), Category: catStore},
		boolFlag(catStore, "new-cluster", "an empty data directory and an empty store mean a new cluster: bootstrap it"),
		stringFlag(catChild, "data-dir", "", "etcd's data `DIRECTORY`, only where it cannot be read off etcd's own flags, environment or config file"),
		durationFlag(catChild, "stop-grace", 10*time.Second, "from TERM to KILL in an ordinary stop"),
		stringFlag(catChild, "restart", "never", "what follows when the child ends by itself: never, on-failure, always"),
		boolFlag(catChild, "exit-when-fenced", "after a handover end with the documented code instead of waiting for the cluster to come back"),
		stringFlag(catHTTP, "http", defaultHTTP, "`ADDRESS` of /livez, /readyz and /status (empty: none)"),
		boolFlag(catHTTP, "check", "start nothing: validate the settings, and print each with its source"),
	})
}

const (
	defaultHTTP       = "127.0.0.1:2384"
	defaultLogLevel   = "info"
	defaultConfigFile = "/etc/etcd-warden/config.yaml"
)
