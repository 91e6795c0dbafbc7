#include "textflag.h"

#define SYS_write 1
#define SYS_rt_sigreturn 15

DATA noteFile<>+0(SB)/4, $-1
GLOBL noteFile<>(SB), NOPTR, $4

// handler(DI signal, SI siginfo, DX context) in the C calling convention, on the thread's signal stack.
// write(2) may be called from a handler; a full or missing pipe loses the note and nothing else.
TEXT handler<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVL noteFile<>(SB), DI
	MOVL $24, DX
	MOVL $SYS_write, AX
	SYSCALL
	RET

TEXT restorer<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVL $SYS_rt_sigreturn, AX
	SYSCALL
	INT $3

// func noteHandler() uintptr
TEXT ·noteHandler(SB), NOSPLIT, $0-8
	LEAQ handler<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func noteRestorer() uintptr
TEXT ·noteRestorer(SB), NOSPLIT, $0-8
	LEAQ restorer<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func setNoteFile(fd int32)
TEXT ·setNoteFile(SB), NOSPLIT, $0-4
	MOVL fd+0(FP), AX
	MOVL AX, noteFile<>(SB)
	RET

// func saRestorerFlag() uintptr
TEXT ·saRestorerFlag(SB), NOSPLIT, $0-8
	MOVQ $0x04000000, ret+0(FP)
	RET
