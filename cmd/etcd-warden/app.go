package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/signals"
)

// program is what the commands share.
type program struct {
	inbox *signals.Inbox
	code  int // exit code of a command that ended without an error of ours

	faultPoint func(step string) // for tests of crashes; nil in the product
}

// execute runs one command line and returns the exit code, with the error to print, if any.
func execute(args []string, inbox *signals.Inbox) (int, error) {
	return (&program{inbox: inbox}).execute(args)
}

func (p *program) execute(args []string) (int, error) {
	args, err := dropIn(args)
	if err != nil {
		return exitCode(err), err
	}
	err = p.app().Run(args)
	var usage *configError
	if err != nil && !errors.As(err, &usage) && isUsage(err) {
		err = badConfig("%w; see `etcd-warden --help`", err)
	}
	if err != nil {
		return exitCode(err), err
	}
	return p.code, nil
}

func (p *program) app() *cli.App {
	app := &cli.App{
		Name:                 "etcd-warden",
		Usage:                "supervise an etcd and hand it over to another site without losing a write",
		Version:              version,
		Writer:               os.Stdout,
		ErrWriter:            io.Discard, // errors are printed once, by main
		HideHelpCommand:      true,
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {}, // nothing below main may end the process
		OnUsageError:         func(_ *cli.Context, err error, _ bool) error { return badConfig("%w", err) },
		Commands: []*cli.Command{
			p.runCommand(), p.ownerCommand(), p.awaitFinalCommand(), p.restoreCommand(), p.storeCommand(), p.snapshotCommand(), p.statusCommand(), p.demoCommand(), p.versionCommand(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return badConfig("unknown command %q; see `etcd-warden --help`", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, cmd := range app.Commands {
		cmd.OnUsageError = func(c *cli.Context, err error, _ bool) error {
			return badConfig("%w; see `etcd-warden %s --help`", err, c.Command.Name)
		}
	}
	return app
}

// isUsage tells the flag library's own complaints, which have no type, from everything else: they are all made before
// any action of ours starts.
func isUsage(err error) bool {
	return slices.ContainsFunc([]string{"flag provided but not defined", "flag needs an argument", "invalid value", "could not parse"},
		func(s string) bool { return strings.Contains(err.Error(), s) })
}

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Action: func(c *cli.Context) error { _, err := fmt.Fprintln(c.App.Writer, "etcd-warden", version); return err },
	}
}

// oneShot runs an action that a signal may interrupt: TERM, INT and HUP end its context with a cause.
func (p *program) oneShot(action func(context.Context, *cli.Context, zerolog.Logger) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := loadSettings(c); err != nil {
			return err
		}
		log, flush, err := newLogger(c)
		if err != nil {
			return err
		}
		defer flush()
		ctx, cancel := context.WithCancelCause(c.Context)
		defer cancel(nil)
		stop := p.inbox.OnStop(func(sig fmt.Stringer) { cancel(fmt.Errorf("interrupted by %s", sig)) })
		defer stop()
		if err = action(ctx, c, log); err != nil && ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		return err
	}
}
